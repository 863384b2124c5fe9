/* One pass over a tensor in memory: statistics, digest, sketch, CRC-32; and one pass over two buffers.
 *
 * No framework header, no allocation. The definitions are the numpy functions beside this file (statistics.py,
 * digest.py, sketch.py, pair.py); this file only makes them fast and is tested against them.
 *
 * A tensor is walked in tiles of at most TILE elements that stay in the first-level cache. Dimensions are sorted
 * by stride first, so a transposed but dense tensor is still read in memory order: statistics do not depend on
 * order, and digest and sketch weigh an element by its logical coordinates, which the sorted dimensions carry along.
 *
 * Loops are written so that gcc vectorises them, once per instruction set (CLONES). Only the fp32 inner loops are also
 * written with AVX-512 intrinsics: the compiler's own version takes twice the time.
 */
#include "_kernels.h"
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernel reads little-endian memory; trueup falls back to numpy here"
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_X86 1
#endif
#if defined(HAS_X86) && defined(__linux__) && !defined(__clang__) && __GNUC__ >= 12
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#ifdef HAS_X86
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")))
#endif

/* Tensor memory: any type may be read through any other, at any address. */
#ifdef __GNUC__
#define LOOSE __attribute__((may_alias, aligned(1)))
#define ALIGNED __attribute__((aligned(64)))
#else
#define LOOSE
#define ALIGNED
#endif
typedef float LOOSE loose_float;
typedef double LOOSE loose_double;
typedef uint8_t LOOSE loose_u8;
typedef uint16_t LOOSE loose_u16;
typedef uint32_t LOOSE loose_u32;
typedef uint64_t LOOSE loose_u64;
typedef int8_t LOOSE loose_i8;
typedef int16_t LOOSE loose_i16;
typedef int32_t LOOSE loose_i32;
typedef int64_t LOOSE loose_i64;

/* Bytes read ahead, into the first and the second cache: processors do not by themselves go beyond a page, and most
 * tensors come from memory. */
enum { AHEAD = 2048, FAR_AHEAD = 12288 };
enum { TILE = 1024, BLOCK = 256, PERIOD = 1024, SIGNS = 2048 };
enum { WANT_STATISTICS = 1, WANT_DIGEST = 2, WANT_SKETCH = 4, WANT_CRC32 = 8 };
static const uint8_t ITEM_BYTES[NUM_DTYPES] = {8, 4, 2, 2, 1, 1, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 8, 16};

typedef struct { /* PAIR_DTYPE */
    int64_t numel, num_compared, num_above, num_bits_different, num_nonfinite_mismatch, argmax;
    uint64_t max_ulp_diff;
    double max_abs_diff, max_rel_diff, sum_abs_diff, sum_sq_diff, sum_sq_actual, sum_sq_expected, dot;
    int64_t num_over_thousandth, num_over_five_thousandths;
} Pair;

typedef struct {
    int64_t size, stride, flat; /* elements in memory, elements in the full tensor */
    int generator;
} Dim;

typedef struct { /* lanes merged across blocks; portable code uses lane 0 */
    double sum[8], square[8];
    float low[16], high[16], small[16];
} Lanes;

typedef struct {
    Lanes lanes;
    int64_t num_nan, num_posinf, num_neginf, num_zero, num_finite;
    double low, high, sum, square, small;
    double sketch[2 * SKETCH]; /* buckets l and l + 64 are one: a turned row of 64 is added in one piece */
    uint64_t digest;
    uint32_t crc;
} State;

/* ------------------------------------------------------------------ constant tables, filled once at import */

static uint64_t GENERATOR[MAX_DIMS + 1];               /* the last one: real and imaginary part */
static ALIGNED uint64_t POWERS[MAX_DIMS + 1][4][TILE];         /* digest weights along one dim, laid out in planes */
static ALIGNED uint32_t SIGN[SIGNS + PERIOD];                  /* sign bits as masks */
static float FP8[4][256];
static uint32_t CRC[16][256];
static int has_avx512, use_avx512;

uint64_t splitmix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* A 64-bit word holds `lanes` narrow elements e_0 + e_1 2^b + ...; instead of unpacking them,
 *   sum_j e_j w_j = sum_j (word >> jb) c_j   with   c_0 = w_0,  c_j = w_j - 2^b w_(j-1)   (mod 2^64).
 * Plane j holds the c_j of all words: one multiplication an element and no shuffles. */
static void planes_from_weights(const uint64_t *w, int n, int log_lanes, uint64_t *planes) {
    int lanes = 1 << log_lanes, bits = 64 >> log_lanes, length = TILE >> log_lanes;
    for (int i = 0; i < n; i++) {
        int j = i & (lanes - 1);
        planes[j * length + (i >> log_lanes)] = j ? w[i] - (w[i - 1] << bits) : w[i];
    }
    for (int i = n; i & (lanes - 1); i++) planes[(i & (lanes - 1)) * length + (i >> log_lanes)] = 0;
}

static float fp8_value(int code, int byte) {
    int mantissa_bits = code == E4M3FN || code == E4M3FNUZ ? 3 : 2;
    int bias = code == E4M3FN ? 7 : code == E5M2 ? 15 : code == E4M3FNUZ ? 8 : 16;
    int magnitude = byte & 0x7f, exponent = magnitude >> mantissa_bits;
    int mantissa = magnitude & ((1 << mantissa_bits) - 1);
    float value;
    if (code == E4M3FNUZ || code == E5M2FNUZ) {
        if (byte == 0x80) return NAN;
    } else if (code == E4M3FN) {
        if (magnitude == 0x7f) return NAN;
    } else if (exponent == 31) {
        return mantissa ? NAN : byte & 0x80 ? -INFINITY : INFINITY;
    }
    if (exponent) value = ldexpf((float)(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
    else value = ldexpf((float)mantissa, 1 - bias - mantissa_bits);
    return byte & 0x80 ? -value : value;
}

static void fill_tables(void) {
    for (int d = 0; d <= MAX_DIMS; d++) {
        uint64_t w[TILE];
        GENERATOR[d] = (splitmix64((uint64_t)d + 1) & ~(uint64_t)7) | 5;
        w[0] = 1;
        for (int i = 1; i < TILE; i++) w[i] = w[i - 1] * GENERATOR[d];
        for (int k = 0; k < 4; k++) planes_from_weights(w, TILE, k, POWERS[d][k]);
    }
    for (int i = 0; i < SIGNS + PERIOD; i++) {
        int j = i % SIGNS;
        uint32_t bit = (uint32_t)(splitmix64(0x5151 + (uint64_t)(j % PERIOD)) >> 63) ^ (j >= PERIOD);
        SIGN[i] = bit << 31;
    }
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 256; i++) FP8[k][i] = fp8_value(E4M3FN + k, i);
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        CRC[0][i] = c;
    }
    for (int i = 0; i < 256; i++)
        for (int k = 1; k < 16; k++) CRC[k][i] = CRC[0][CRC[k - 1][i] & 0xff] ^ (CRC[k - 1][i] >> 8);
#ifdef HAS_X86
    __builtin_cpu_init();
    has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    use_avx512 = has_avx512;
#endif
}

/* A program may have set flush-to-zero for its own arithmetic; the summary must still see denormals. */
static unsigned arithmetic_save(void) {
#ifdef HAS_X86
    unsigned saved = _mm_getcsr();
    if (saved & 0xE040) _mm_setcsr(saved & ~0xE040u);
    return saved;
#else
    return 0;
#endif
}
static void arithmetic_restore(unsigned saved) {
#ifdef HAS_X86
    if (saved & 0xE040) _mm_setcsr(saved);
#else
    (void)saved;
#endif
}

/* ------------------------------------------------------------------ decoding */

CLONES static void float_from_bf16(const loose_u16 *x, int n, float *out) {
    loose_u32 *u = (loose_u32 *)out;
    for (int i = 0; i < n; i++) u[i] = (uint32_t)x[i] << 16;
}

CLONES static void float_from_f16(const loose_u16 *x, int n, float *out) {
    loose_u32 *u = (loose_u32 *)out;
    for (int i = 0; i < n; i++) out[i] = (float)(int32_t)(x[i] & 0x7fffu) * 0x1p-24f; /* right for denormals */
    for (int i = 0; i < n; i++) {
        uint32_t magnitude = x[i] & 0x7fffu, sign = (uint32_t)(x[i] & 0x8000u) << 16;
        uint32_t normal = (magnitude << 13) + (magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u);
        u[i] = (magnitude < 0x400u ? u[i] : normal) | sign;
    }
}

static int is_float32_exact(int code) { return code >= F32 && code <= E5M2FNUZ; }

/* Values of a dtype whose every value is a float; returns `raw` itself for float32. */
static const loose_float *floats_from_raw(const void *raw, int n, int code, float *buffer) {
    if (code == F32) return (const loose_float *)raw;
    if (code == BF16) float_from_bf16((const loose_u16 *)raw, n, buffer);
    else if (code == F16) float_from_f16((const loose_u16 *)raw, n, buffer);
    else
        for (int i = 0; i < n; i++) buffer[i] = FP8[code - E4M3FN][((const uint8_t *)raw)[i]];
    return buffer;
}

#define CONVERT(type) for (int i = 0; i < n; i++) out[i] = (double)((const type *)raw)[i]; break
CLONES static void doubles_from_plain(const void *raw, int n, int code, double *out) {
    switch (code) {
    case F64: memcpy(out, raw, (size_t)n * 8); break;
    case F32: CONVERT(loose_float);
    case I8: CONVERT(loose_i8);
    case I16: CONVERT(loose_i16);
    case I32: CONVERT(loose_i32);
    case I64: CONVERT(loose_i64);
    case U8: CONVERT(loose_u8);
    case U16: CONVERT(loose_u16);
    case U32: CONVERT(loose_u32);
    case U64: CONVERT(loose_u64);
    default: for (int i = 0; i < n; i++) out[i] = ((const uint8_t *)raw)[i] != 0;
    }
}

static void doubles_from_raw(const void *raw, int n, int code, double *out) {
    float buffer[BLOCK];
    if (is_float32_exact(code)) raw = floats_from_raw(raw, n, code, buffer), code = F32;
    doubles_from_plain(raw, n, code, out);
}

/* ------------------------------------------------------------------ statistics */

#define SIGN64 0x8000000000000000ull
#define INF64 0x7ff0000000000000ull
static inline double double_from_bits(uint64_t bits) {
    union { uint64_t bits; double value; } both = {bits};
    return both.value;
}
/* All ones where a double is finite. */
static inline uint64_t finite_mask(uint64_t bits) { return (bits & ~SIGN64) < INF64 ? ~(uint64_t)0 : 0; }

/* Any values: non-finite, huge, denormal. At most BLOCK of them, all in double. */
CLONES static void statistics_wide(const double *x, int n, State *st) {
    int64_t num_nan = 0, num_posinf = 0, num_neginf = 0, num_zero = 0;
    double low = INFINITY, high = -INFINITY, small = INFINITY, sum = 0, square = 0;
    const loose_u64 *u = (const loose_u64 *)x;
#pragma omp simd reduction(+ : num_nan, num_posinf, num_neginf, num_zero, sum, square) \
    reduction(min : low, small) reduction(max : high)
    for (int i = 0; i < n; i++) { /* integer comparisons: gcc vectorises no selection by a float one */
        uint64_t bits = u[i], size = bits & ~SIGN64, finite = finite_mask(bits);
        uint64_t usable = size - 1 < INF64 - 1 ? ~(uint64_t)0 : 0;
        double used = double_from_bits(bits & finite), lower = double_from_bits((bits & finite) | (INF64 & ~finite));
        double higher = double_from_bits((bits & finite) | ((INF64 | SIGN64) & ~finite));
        double nonzero = double_from_bits((size & usable) | (INF64 & ~usable));
        num_nan += size > INF64;
        num_posinf += bits == INF64;
        num_neginf += bits == (INF64 | SIGN64);
        num_zero += size == 0;
        sum += used;
        square += used * used;
        low = lower < low ? lower : low;
        high = higher > high ? higher : high;
        small = nonzero < small ? nonzero : small;
    }
    st->num_nan += num_nan, st->num_posinf += num_posinf, st->num_neginf += num_neginf, st->num_zero += num_zero;
    st->num_finite += n - num_nan - num_posinf - num_neginf;
    st->sum += sum, st->square += square;
    st->low = low < st->low ? low : st->low;
    st->high = high > st->high ? high : st->high;
    st->small = small < st->small ? small : st->small;
}

/* Zeros and the smallest nonzero magnitude of finite floats: magnitudes order like their bits. */
CLONES static void zeros_of_block(const loose_float *x, int n, State *st) {
    const loose_u32 *u = (const loose_u32 *)x;
    uint32_t smallest = 0xffffffffu, zeros = 0;
#pragma omp simd reduction(+ : zeros) reduction(min : smallest)
    for (int i = 0; i < n; i++) {
        uint32_t a = u[i] & 0x7fffffffu, below = a - 1u;
        zeros += a == 0;
        smallest = below < smallest ? below : smallest;
    }
    st->num_zero += zeros;
    if (zeros != (uint32_t)n) {
        float value;
        smallest += 1u;
        memcpy(&value, &smallest, 4);
        st->small = value < st->small ? value : st->small;
    } else {
        st->low = st->low > 0 ? 0 : st->low;
        st->high = st->high < 0 ? 0 : st->high;
    }
}

enum { SAFE = 0, WITH_ZEROS = 1, UNSAFE = 2 };
/* Sums of squares in fp32 lanes are good when none overflowed (or met a NaN) and the largest is far from
 * underflow: what is then lost is below 2^-24 of the block's norm. Everything else goes through double. */
#define SQUARE_TOP 1e36f
#define SQUARE_BOTTOM 1e-28f

CLONES static int statistics_block_portable(const loose_float *x, int n, Lanes *lanes) {
    const loose_u32 *u = (const loose_u32 *)x;
    double sum, square;
    float s = 0, q = 0, low = INFINITY, high = -INFINITY, smallest;
    uint32_t small = 0x7f800000u;
#pragma omp simd reduction(+ : s, q) reduction(min : low, small) reduction(max : high)
    for (int i = 0; i < n; i++) {
        float v = x[i];
        uint32_t a = u[i] & 0x7fffffffu;
        s += v;
        q += v * v;
        low = v < low ? v : low;
        high = v > high ? v : high;
        small = a < small ? a : small;
    }
    if (!(q < SQUARE_TOP && q > SQUARE_BOTTOM)) return UNSAFE;
    sum = s, square = q;
    lanes->sum[0] += sum, lanes->square[0] += square;
    lanes->low[0] = low < lanes->low[0] ? low : lanes->low[0];
    lanes->high[0] = high > lanes->high[0] ? high : lanes->high[0];
    if (small == 0) return WITH_ZEROS;
    memcpy(&smallest, &small, 4);
    lanes->small[0] = smallest < lanes->small[0] ? smallest : lanes->small[0];
    return SAFE;
}

#ifdef HAS_X86
AVX512 static inline __m512d halves_added(__m512 x) {
    return _mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(x)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
}

/* Statistics of one block, and with `digest` also its weighted sum of bits (two planes, fp32 only). */
AVX512 static inline int block_avx512(const loose_float *x, int n, Lanes *lanes, int digest, const uint64_t *planes,
                                      __m512i *hash) {
    __m512 s[4], q[4], low = _mm512_set1_ps(INFINITY), high = _mm512_set1_ps(-INFINITY), small = low;
    __m512i h0 = hash[0], h1 = hash[1];
    int code = SAFE, i = 0;
    for (int k = 0; k < 4; k++) s[k] = q[k] = _mm512_setzero_ps();
#define STEP(k, v)                                                                                       \
    s[k] = _mm512_add_ps(s[k], v), q[k] = _mm512_fmadd_ps(v, v, q[k]);                                   \
    if (digest) {                                                                                        \
        __m512i bits = _mm512_castps_si512(v);                                                           \
        bits = _mm512_xor_si512(bits, _mm512_srli_epi32(bits, 16));                                      \
        h0 = _mm512_add_epi64(h0, _mm512_mullo_epi64(bits, _mm512_loadu_si512(planes + (i + 16 * k) / 2))); \
        h1 = _mm512_add_epi64(h1, _mm512_mullo_epi64(_mm512_srli_epi64(bits, 32),                        \
                                                     _mm512_loadu_si512(planes + (i + 16 * k) / 2 + TILE / 2))); \
    }
    for (; i + 64 <= n; i += 64)
        for (int k = 0; k < 4; k++) {
            __m512 v = _mm512_loadu_ps(x + i + 16 * k);
            _mm_prefetch((const char *)(x + i + 16 * k) + AHEAD, _MM_HINT_T0);
            _mm_prefetch((const char *)(x + i + 16 * k) + FAR_AHEAD, _MM_HINT_T1);
            low = _mm512_min_ps(v, low), high = _mm512_max_ps(v, high);
            small = _mm512_range_ps(small, v, 0x0A); /* the smaller magnitude */
            STEP(k, v)
        }
    for (; i < n; i += 16) {
        __mmask16 m = (__mmask16)(n - i >= 16 ? 0xffffu : (1u << (n - i)) - 1u);
        __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        low = _mm512_mask_min_ps(low, m, v, low), high = _mm512_mask_max_ps(high, m, v, high);
        small = _mm512_mask_range_ps(small, m, small, v, 0x0A);
        STEP(0, v)
    }
#undef STEP
    hash[0] = h0, hash[1] = h1;
    s[0] = _mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3]));
    q[0] = _mm512_add_ps(_mm512_add_ps(q[0], q[1]), _mm512_add_ps(q[2], q[3]));
    if (_mm512_cmp_ps_mask(q[0], _mm512_set1_ps(SQUARE_TOP), _CMP_NLT_UQ) ||
        !_mm512_cmp_ps_mask(q[0], _mm512_set1_ps(SQUARE_BOTTOM), _CMP_GT_OQ))
        return UNSAFE;
    if (_mm512_cmp_ps_mask(small, _mm512_setzero_ps(), _CMP_EQ_OQ)) code = WITH_ZEROS;
    else _mm512_storeu_ps(lanes->small, _mm512_min_ps(_mm512_loadu_ps(lanes->small), small));
    _mm512_storeu_pd(lanes->sum, _mm512_add_pd(_mm512_loadu_pd(lanes->sum), halves_added(s[0])));
    _mm512_storeu_pd(lanes->square, _mm512_add_pd(_mm512_loadu_pd(lanes->square), halves_added(q[0])));
    _mm512_storeu_ps(lanes->low, _mm512_min_ps(_mm512_loadu_ps(lanes->low), low));
    _mm512_storeu_ps(lanes->high, _mm512_max_ps(_mm512_loadu_ps(lanes->high), high));
    return code;
}

/* codes: one per block. Returns the tile's weighted sum of bits when `planes` is given. */
AVX512 static uint64_t tile_avx512(const loose_float *x, int n, Lanes *lanes, const uint64_t *planes, int *codes) {
    __m512i hash[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int i = 0; i < n; i += BLOCK) {
        int length = n - i < BLOCK ? n - i : BLOCK;
        if (planes) codes[i / BLOCK] = block_avx512(x + i, length, lanes, 1, planes + i / 2, hash);
        else codes[i / BLOCK] = block_avx512(x + i, length, lanes, 0, NULL, hash);
    }
    uint64_t parts[8], total = 0;
    _mm512_storeu_si512(parts, _mm512_add_epi64(hash[0], hash[1]));
    for (int i = 0; i < 8; i++) total += parts[i];
    return total;
}
#endif

static int all_zero(const loose_float *x, int n) {
    const loose_u32 *u = (const loose_u32 *)x;
    uint32_t any = 0;
    for (int i = 0; i < n; i++) any |= u[i];
    return (any & 0x7fffffffu) == 0;
}

/* Returns 1 when some block held values that fp32 lanes cannot sum. */
static int statistics_after(const loose_float *x, int n, const int *codes, State *st) {
    int unsafe = 0;
    for (int i = 0; i < n; i += BLOCK) {
        int length = n - i < BLOCK ? n - i : BLOCK, code = codes[i / BLOCK];
        if (code == UNSAFE && all_zero(x + i, length)) code = WITH_ZEROS;
        if (code == UNSAFE) {
            double wide[BLOCK];
            doubles_from_plain(x + i, length, F32, wide);
            statistics_wide(wide, length, st);
            unsafe = 1;
            continue;
        }
        st->num_finite += length;
        if (code == WITH_ZEROS) zeros_of_block(x + i, length, st);
    }
    return unsafe;
}

/* ------------------------------------------------------------------ digest */

/* mix(b) = m ^ (m >> 16), m = b ^ (b >> 32): a bijection, nothing to do for 16 bits and fewer. */
#define MIX64(a) ((a) ^= (a) >> 32, (a) ^= (a) >> 16)
#define MIX32(a) ((a) ^= ((a) >> 16) & 0x0000ffff0000ffffull)

CLONES static uint64_t digest_words(const loose_u64 *words, int n, int log_lanes, const uint64_t *c) {
    uint64_t h = 0;
    switch (log_lanes) {
    case 0:
        for (int i = 0; i < n; i++) {
            uint64_t a = words[i];
            MIX64(a);
            h += a * c[i];
        }
        break;
    case 1:
        for (int i = 0; i < n; i++) {
            uint64_t a = words[i];
            MIX32(a);
            h += a * c[i] + (a >> 32) * c[i + TILE / 2];
        }
        break;
    case 2:
        for (int i = 0; i < n; i++) {
            uint64_t a = words[i];
            h += a * c[i] + (a >> 16) * c[i + TILE / 4] + (a >> 32) * c[i + TILE / 2] + (a >> 48) * c[i + 3 * TILE / 4];
        }
        break;
    default:
        for (int i = 0; i < n; i++) {
            uint64_t a = words[i];
            h += a * c[i] + (a >> 8) * c[i + TILE / 8] + (a >> 16) * c[i + TILE / 4] + (a >> 24) * c[i + 3 * TILE / 8] +
                 (a >> 32) * c[i + TILE / 2] + (a >> 40) * c[i + 5 * TILE / 8] + (a >> 48) * c[i + 3 * TILE / 4] +
                 (a >> 56) * c[i + 7 * TILE / 8];
        }
    }
    return h;
}

static uint64_t digest_tile(const char *raw, int n, int log_lanes, const uint64_t *planes) {
    int words = n >> log_lanes, rest = n & ((1 << log_lanes) - 1);
    uint64_t h = digest_words((const loose_u64 *)raw, words, log_lanes, planes);
    if (rest) {
        uint64_t last = 0;
        memcpy(&last, raw + 8 * (size_t)words, (size_t)rest << (3 - log_lanes));
        h += digest_words((const loose_u64 *)&last, 1, log_lanes, planes + words);
    }
    return h;
}

static uint64_t power(uint64_t base, uint64_t exponent) {
    uint64_t result = 1;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

/* Weights of a tile of several dims: doubled along each dim in turn, innermost first. */
CLONES static void scale_weights(const uint64_t *from, uint64_t factor, int n, uint64_t *to) {
    for (int i = 0; i < n; i++) to[i] = from[i] * factor;
}

static void weights_of_tile(const Dim *dims, int first, int ndim, int64_t rows, uint64_t *w) {
    int length = 1;
    w[0] = 1;
    for (int d = ndim - 1; d >= first; d--) {
        int total = length * (int)(d == first ? rows : dims[d].size);
        uint64_t factor = GENERATOR[dims[d].generator];
        while (length < total) {
            int n = total - length < length ? total - length : length;
            scale_weights(w, factor, n, w + length);
            length += n;
            factor *= factor;
        }
    }
}

/* ------------------------------------------------------------------ sketch */

typedef struct { const uint32_t *sign; int rotation; } Period;

static Period period_of(int64_t flat) {
    uint64_t z = splitmix64((uint64_t)flat / PERIOD ^ 0xC0FFEE5EEDull);
    Period p = {SIGN + (z >> 57) * 16, (int)(z & (SKETCH - 1))};
    return p;
}

static inline double signed_value(double v, uint32_t sign) { return sign ? -v : v; }

/* The sum of rows of 64, the last of which may be shorter, added to out[0..63]. */
CLONES static void sketch_rows_portable(const loose_float *x, const uint32_t *sign, int n, double *out) {
    const loose_u32 *u = (const loose_u32 *)x;
    float y[SKETCH] = {0};
    int i = 0, used = n < SKETCH ? n : SKETCH;
    uint32_t bits[SKETCH];
    for (; i + SKETCH <= n; i += SKETCH) {
        for (int l = 0; l < SKETCH; l++) bits[l] = u[i + l] ^ sign[i + l];
        for (int l = 0; l < SKETCH; l++) y[l] += ((const loose_float *)bits)[l];
    }
    for (int l = 0; l < n - i; l++) bits[l] = u[i + l] ^ sign[i + l];
    for (int l = 0; l < n - i; l++) y[l] += ((const loose_float *)bits)[l];
    for (int l = 0; l < used; l++) out[l] += y[l];
}

#ifdef HAS_X86
AVX512 static inline __m512 signed_floats(__mmask16 m, const loose_float *x, const uint32_t *sign) {
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_maskz_loadu_epi32(m, x), _mm512_maskz_loadu_epi32(m, sign)));
}

AVX512 static void sketch_rows_avx512(const loose_float *x, const uint32_t *sign, int n, double *out) {
    int i = 0, used = n < SKETCH ? (n + 15) / 16 : SKETCH / 16;
    __m512 a[4];
    for (int k = 0; k < 4; k++) a[k] = _mm512_setzero_ps();
    for (; i + SKETCH <= n; i += SKETCH)
        for (int k = 0; k < 4; k++) a[k] = _mm512_add_ps(a[k], signed_floats(0xffff, x + i + 16 * k, sign + i + 16 * k));
    for (int k = 0; i < n; i += 16, k++) {
        __mmask16 m = (__mmask16)(n - i >= 16 ? 0xffffu : (1u << (n - i)) - 1u);
        a[k] = _mm512_add_ps(a[k], signed_floats(m, x + i, sign + i));
    }
    for (int k = 0; k < used; k++, out += 16) {
        __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(a[k]));
        __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a[k], 1));
        _mm512_storeu_pd(out, _mm512_add_pd(_mm512_loadu_pd(out), low));
        _mm512_storeu_pd(out + 8, _mm512_add_pd(_mm512_loadu_pd(out + 8), high));
    }
}
#endif

/* Copies floats, those that are not finite as 0; returns whether 16 of them can be added in fp32. */
CLONES static int addable_floats(const loose_float *x, int n, float *out) {
    const loose_u32 *u = (const loose_u32 *)x;
    loose_u32 *to = (loose_u32 *)out;
    uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (int i = 0; i < n; i++) {
        uint32_t size = u[i] & 0x7fffffffu, finite = size < 0x7f800000u ? 0xffffffffu : 0u;
        to[i] = u[i] & finite;
        size &= finite;
        largest = size > largest ? size : largest;
    }
    return largest < 0x7b800000u; /* 2^120 */
}

/* n floats at consecutive flat indices that 16 of can be added in fp32. */
static void sketch_run_float(const loose_float *x, int n, int64_t flat, double *out) {
    while (n > 0) {
        int place = (int)(flat % PERIOD), length = PERIOD - place < n ? PERIOD - place : n;
        Period p = period_of(flat);
        double *turned = out + (place + p.rotation) % SKETCH;
#ifdef HAS_X86
        if (use_avx512) sketch_rows_avx512(x, p.sign + place, length, turned);
        else
#endif
            sketch_rows_portable(x, p.sign + place, length, turned);
        x += length, n -= length, flat += length;
    }
}

/* Any values and any step between flat indices; non-finite ones count as 0. */
static void sketch_run_double(const double *x, int n, int64_t flat, int64_t step, double *out) {
    int64_t block = -1;
    Period p = {SIGN, 0};
    for (int i = 0; i < n; i++, flat += step) {
        int place = (int)(flat % PERIOD);
        if (flat / PERIOD != block) block = flat / PERIOD, p = period_of(flat);
        if (fabs(x[i]) <= DBL_MAX)
            out[(place + p.rotation) % SKETCH] += signed_value(x[i], p.sign[place]);
    }
}

/* ------------------------------------------------------------------ CRC-32 (zlib's polynomial), 16 bytes a step */

static uint32_t crc32_update(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
    for (; n >= 16; p += 16, n -= 16) {
        uint32_t w[4];
        memcpy(w, p, 16);
        w[0] ^= crc;
        crc = 0;
        for (int k = 0; k < 4; k++)
            crc ^= CRC[15 - 4 * k][w[k] & 0xff] ^ CRC[14 - 4 * k][(w[k] >> 8) & 0xff] ^
                   CRC[13 - 4 * k][(w[k] >> 16) & 0xff] ^ CRC[12 - 4 * k][w[k] >> 24];
    }
    for (; n; n--) crc = CRC[0][(crc ^ *p++) & 0xff] ^ (crc >> 8);
    return ~crc;
}

/* ------------------------------------------------------------------ walking a tensor */

typedef struct {
    Dim dims[MAX_DIMS + 1];
    int ndim, first;    /* the tile spans dims[first:], `rows` of the first one */
    int64_t rows, inner;
    int dense, flat;    /* the tile is one run in memory; in the full tensor */
    int code, item_bytes;
} Walk;

static void choose_tile(Walk *w) {
    int64_t inner = 1, rows, num_tiles;
    int k = w->ndim - 1;
    while (k > 0 && inner * w->dims[k].size <= TILE) inner *= w->dims[k--].size;
    rows = TILE / inner < 1 ? 1 : TILE / inner;
    num_tiles = (w->dims[k].size + rows - 1) / rows;
    if (num_tiles > 1) { /* even tiles: 1025 elements are not 1024 and 1 */
        rows = (w->dims[k].size + num_tiles - 1) / num_tiles;
        if (inner == 1) rows = (rows + 63) / 64 * 64;
    } else rows = w->dims[k].size;
    w->first = k, w->rows = rows, w->inner = inner;
    w->dense = w->dims[w->ndim - 1].stride == 1, w->flat = w->dims[w->ndim - 1].flat == 1;
    for (int d = k; d < w->ndim - 1; d++) {
        w->dense &= w->dims[d].stride == w->dims[d + 1].stride * w->dims[d + 1].size;
        w->flat &= w->dims[d].flat == w->dims[d + 1].flat * w->dims[d + 1].size;
    }
}

#define GATHER(type) for (int64_t i = 0; i < n; i++) ((type *)to)[i] = ((const type *)from)[i * stride]; break
static void gather_run(const char *from, int64_t stride, int64_t n, int item_bytes, char *to) {
    if (stride == 1) {
        memcpy(to, from, (size_t)(n * item_bytes));
        return;
    }
    switch (item_bytes) {
    case 1: GATHER(loose_u8);
    case 2: GATHER(loose_u16);
    case 4: GATHER(loose_u32);
    default: GATHER(loose_u64);
    }
}

/* The innermost-dim runs of a tile, in order: their place in memory and in the full tensor. */
typedef struct { int64_t index[MAX_DIMS + 1], memory, flat; } Cursor;

static void cursor_next(const Walk *w, Cursor *c) {
    for (int d = w->ndim - 2; d >= w->first; d--) {
        c->memory += w->dims[d].stride, c->flat += w->dims[d].flat;
        if (++c->index[d] < w->dims[d].size || d == w->first) return;
        c->memory -= w->dims[d].stride * w->dims[d].size, c->flat -= w->dims[d].flat * w->dims[d].size;
        c->index[d] = 0;
    }
}

static void cursor_start(const Walk *w, Cursor *c) {
    c->memory = c->flat = 0;
    for (int d = w->first; d < w->ndim; d++) c->index[d] = 0;
}

static void gather_tile(const Walk *w, const char *data, int64_t n, char *to) {
    const Dim *last = &w->dims[w->ndim - 1];
    int64_t run = w->first == w->ndim - 1 ? n : last->size;
    Cursor c;
    cursor_start(w, &c);
    for (int64_t i = 0; i < n; i += run, cursor_next(w, &c))
        gather_run(data + c.memory * w->item_bytes, last->stride, run, w->item_bytes, to + i * w->item_bytes);
}

/* `floats` or NULL when only `raw` can say; then decoded to double block by block. */
static void sketch_tile(const Walk *w, const loose_float *floats, const char *raw, int64_t n, int64_t flat, State *st) {
    const Dim *last = &w->dims[w->ndim - 1];
    int64_t run = w->flat || w->first == w->ndim - 1 ? n : last->size;
    Cursor c;
    cursor_start(w, &c);
    for (int64_t i = 0; i < n; i += run, cursor_next(w, &c)) {
        if (floats && last->flat == 1) {
            sketch_run_float(floats + i, (int)run, flat + c.flat, st->sketch);
            continue;
        }
        for (int64_t j = 0; j < run; j += BLOCK) {
            double wide[BLOCK];
            int length = (int)(run - j < BLOCK ? run - j : BLOCK);
            doubles_from_raw(raw + (i + j) * w->item_bytes, length, w->code, wide);
            sketch_run_double(wide, length, flat + c.flat + j * last->flat, last->flat, st->sketch);
        }
    }
}

static void summarise_tile(const Walk *w, const char *raw, int n, int64_t flat, const uint64_t *planes, int log_lanes,
                           uint64_t weight, int want, State *st) {
    float buffer[TILE];
    const loose_float *floats = NULL;
    int digest_done = 0, unsafe = 1;
    if ((want & WANT_SKETCH) && is_float32_exact(w->code)) floats = floats_from_raw(raw, n, w->code, buffer);
    if (want & WANT_STATISTICS) {
        if (is_float32_exact(w->code)) {
            int codes[TILE / BLOCK];
            if (!floats) floats = floats_from_raw(raw, n, w->code, buffer);
#ifdef HAS_X86
            if (use_avx512) {
                digest_done = (want & WANT_DIGEST) && w->code == F32;
                st->digest += weight * tile_avx512(floats, n, &st->lanes, digest_done ? planes : NULL, codes);
            } else
#endif
                for (int i = 0; i < n; i += BLOCK)
                    codes[i / BLOCK] = statistics_block_portable(floats + i, n - i < BLOCK ? n - i : BLOCK, &st->lanes);
            unsafe = statistics_after(floats, n, codes, st);
        } else
            for (int i = 0; i < n; i += BLOCK) {
                double wide[BLOCK];
                int length = n - i < BLOCK ? n - i : BLOCK;
                doubles_from_plain(raw + (size_t)i * (size_t)w->item_bytes, length, w->code, wide);
                statistics_wide(wide, length, st);
            }
    }
    if ((want & WANT_DIGEST) && !digest_done) st->digest += weight * digest_tile(raw, n, log_lanes, planes);
    if (want & WANT_SKETCH) {
        if (unsafe && floats) floats = addable_floats(floats, n, buffer) ? buffer : NULL;
        sketch_tile(w, floats, raw, n, flat, st);
    }
    if (want & WANT_CRC32) st->crc = crc32_update(st->crc, (const uint8_t *)raw, (size_t)n * (size_t)w->item_bytes);
}

static void walk(Walk *w, const char *data, int64_t flat, int want, State *st) {
    uint64_t weights[TILE], partial[MAX_DIMS + 2], step;
    ALIGNED uint64_t built[TILE], gathered[TILE];
    int64_t index[MAX_DIMS + 1] = {0};
    int log_lanes = w->item_bytes == 8 ? 0 : w->item_bytes == 4 ? 1 : w->item_bytes == 2 ? 2 : 3;
    const uint64_t *planes = NULL;
    choose_tile(w);
    if (want & WANT_DIGEST) {
        planes = POWERS[w->dims[w->first].generator][log_lanes];
        if (w->inner > 1) {
            weights_of_tile(w->dims, w->first, w->ndim, w->rows, weights);
            planes_from_weights(weights, (int)(w->rows * w->inner), log_lanes, built);
            planes = built;
        }
    }
    step = power(GENERATOR[w->dims[w->first].generator], (uint64_t)w->rows);
    for (int d = 0; d <= w->first + 1; d++) partial[d] = 1;
    for (;;) { /* partial[d + 1]: product of the weights of dims 0..d at the current place */
        const Dim *split = &w->dims[w->first];
        const char *at = data;
        int64_t at_flat = flat;
        uint64_t weight = partial[w->first];
        int d;
        for (int64_t i = 0; i < split->size; i += w->rows) {
            int64_t rows = split->size - i < w->rows ? split->size - i : w->rows;
            int n = (int)(rows * w->inner);
            const char *raw = at;
            if (!w->dense) gather_tile(w, at, n, (char *)gathered), raw = (const char *)gathered;
            summarise_tile(w, raw, n, at_flat, planes, log_lanes, weight, want, st);
            at += rows * split->stride * w->item_bytes, at_flat += rows * split->flat, weight *= step;
        }
        for (d = w->first - 1; d >= 0; d--) {
            data += w->dims[d].stride * w->item_bytes, flat += w->dims[d].flat;
            if (++index[d] < w->dims[d].size) break;
            data -= w->dims[d].stride * w->dims[d].size * w->item_bytes, flat -= w->dims[d].flat * w->dims[d].size;
            index[d] = 0;
        }
        if (d < 0) return;
        partial[d + 1] *= GENERATOR[w->dims[d].generator];
        for (int e = d + 1; e < w->first; e++) partial[e + 1] = partial[d + 1];
    }
}

/* Largest stride first; repeated dims (stride 0) outermost. Returns whether anything moved. */
static int sort_dims(Walk *w) {
    int moved = 0;
    for (int i = 1; i < w->ndim; i++) {
        Dim dim = w->dims[i];
        uint64_t key = (uint64_t)dim.stride - 1;
        int j = i;
        for (; j > 0 && (uint64_t)w->dims[j - 1].stride - 1 < key; j--) w->dims[j] = w->dims[j - 1];
        w->dims[j] = dim, moved |= j != i;
    }
    return moved;
}

static void summary_finish(const State *start, int64_t numel, int want, Summary *out) {
    State st = *start;
    const Lanes *l = &st.lanes;
    for (int i = 0; i < 8; i++) st.sum += l->sum[i], st.square += l->square[i];
    for (int i = 0; i < 16; i++) {
        st.low = l->low[i] < st.low ? l->low[i] : st.low;
        st.high = l->high[i] > st.high ? l->high[i] : st.high;
        st.small = l->small[i] < st.small ? l->small[i] : st.small;
    }
    out->numel = numel, out->flags = (uint32_t)want;
    if (want & WANT_STATISTICS) {
        int some = st.num_finite > 0;
        out->num_nan = st.num_nan, out->num_posinf = st.num_posinf, out->num_neginf = st.num_neginf;
        out->num_zero = st.num_zero;
        out->minimum = some ? st.low + 0.0 : NAN, out->maximum = some ? st.high + 0.0 : NAN; /* -0 becomes 0 */
        out->mean = some ? st.sum / (double)st.num_finite : NAN, out->l2_norm = some ? sqrt(st.square) : NAN;
        out->smallest_nonzero = st.small < INFINITY ? st.small : NAN;
    }
    out->digest = st.digest, out->crc32 = st.crc;
    if (want & WANT_SKETCH)
        for (int i = 0; i < SKETCH; i++) out->sketch[i] = (float)(st.sketch[i] + st.sketch[i + SKETCH]);
}

static void state_start(State *st) {
    memset(st, 0, sizeof *st);
    st->low = st->small = INFINITY, st->high = -INFINITY;
    for (int i = 0; i < 16; i++)
        st->lanes.low[i] = st->lanes.small[i] = INFINITY, st->lanes.high[i] = -INFINITY;
}

static void summarise_walk(Walk *w, const char *data, int64_t numel, int64_t flat, int want, Summary *out) {
    State st;
    unsigned saved = arithmetic_save();
    state_start(&st);
    memset(out, 0, want & WANT_SKETCH ? offsetof(Summary, sketch) : sizeof *out);
    out->minimum = out->maximum = out->mean = out->l2_norm = out->smallest_nonzero = NAN;
    if (numel > 0) {
        Walk logical = *w;
        int ordered = sort_dims(w) ? want & (WANT_CRC32 | WANT_SKETCH) : 0;
        if (ordered) walk(&logical, data, flat, ordered, &st); /* bytes have an order; sketches are quicker in it */
        if (want & ~ordered) walk(w, data, flat, want & ~ordered, &st);
    }
    summary_finish(&st, numel, want, out);
    arithmetic_restore(saved);
}

/* Dims of size 1 say nothing; a tensor of one element keeps one. Complex numbers are a dim of two. */
static Walk walk_of(int ndim, const int64_t *shape, const int64_t *strides, const int64_t *full_strides, int code) {
    int is_complex = code == C64 || code == C128;
    Walk w;
    w.code = code == C64 ? F32 : code == C128 ? F64 : code;
    w.item_bytes = ITEM_BYTES[w.code];
    w.ndim = 0;
    for (int d = 0; d < ndim; d++)
        if (shape[d] != 1) {
            Dim dim = {shape[d], strides[d] * (1 + is_complex), full_strides[d] * (1 + is_complex), d};
            w.dims[w.ndim++] = dim;
        }
    if (is_complex || w.ndim == 0) {
        Dim dim = {is_complex ? 2 : 1, 1, 1, MAX_DIMS};
        w.dims[w.ndim++] = dim;
    }
    return w;
}

/* Strides of a contiguous tensor; returns its number of elements. */
static int64_t contiguous_strides(int ndim, const int64_t *shape, int64_t *strides) {
    int64_t numel = 1;
    for (int d = ndim - 1; d >= 0; d--) strides[d] = numel, numel *= shape[d];
    return numel;
}

void summarise_tensor(const void *data, int ndim, const int64_t *shape, const int64_t *strides, int code, int want,
                      Summary *out) {
    int64_t full[MAX_DIMS], numel = contiguous_strides(ndim, shape, full);
    Walk w = walk_of(ndim, shape, strides, full, code);
    summarise_walk(&w, data, numel, 0, want, out);
}

/* ------------------------------------------------------------------ two buffers */

#define IS_FINITE(v) (fabs(v) <= DBL_MAX)

CLONES static double pair_block(const double *a, const double *b, int n, double rtol, double atol, Pair *out) {
    int64_t compared = 0, above = 0, mismatch = 0, over_one = 0, over_five = 0;
    const loose_u64 *u = (const loose_u64 *)a, *v = (const loose_u64 *)b;
    double biggest = 0, relative = 0, sum_abs = 0, sum_d = 0, sum_a = 0, sum_b = 0, dot = 0;
#pragma omp simd reduction(+ : compared, above, mismatch, over_one, over_five, sum_abs, sum_d, sum_a, sum_b, dot) \
    reduction(max : biggest, relative)
    for (int i = 0; i < n; i++) {
        uint64_t p = u[i], q = v[i], both = finite_mask(p) & finite_mask(q);
        uint64_t nans = (uint64_t)((p & ~SIGN64) > INF64) & (uint64_t)((q & ~SIGN64) > INF64);
        double x = double_from_bits(p & both), y = double_from_bits(q & both), d = fabs(x - y), size = fabs(y);
        uint64_t divisor = q & both & ~SIGN64;
        double r = d / double_from_bits(divisor ? divisor : INF64);
        compared += both & 1;
        mismatch += ~both & ((nans | (uint64_t)(p == q)) ^ 1); /* infinities and NaNs only */
        above += d > atol + rtol * size, over_one += d > 0.001 * size, over_five += d > 0.005 * size;
        sum_abs += d, sum_d += d * d, sum_a += x * x, sum_b += y * y, dot += x * y;
        biggest = d > biggest ? d : biggest;
        relative = r > relative ? r : relative;
    }
    out->num_compared += compared, out->num_above += above, out->num_nonfinite_mismatch += mismatch;
    out->num_over_thousandth += over_one, out->num_over_five_thousandths += over_five;
    out->sum_abs_diff += sum_abs, out->sum_sq_diff += sum_d, out->sum_sq_actual += sum_a;
    out->sum_sq_expected += sum_b, out->dot += dot;
    out->max_rel_diff = relative > out->max_rel_diff ? relative : out->max_rel_diff;
    return biggest;
}

#define WIDEN(type) for (int i = 0; i < n; i++) out[i] = ((const type *)raw)[i]; break
CLONES static void bits_from_raw(const void *raw, int n, int item_bytes, uint64_t *out) {
    switch (item_bytes) {
    case 1: WIDEN(loose_u8);
    case 2: WIDEN(loose_u16);
    case 4: WIDEN(loose_u32);
    default: WIDEN(loose_u64);
    }
}

/* Bits become unsigned integers that are as far apart as the values are in units in the last place. */
CLONES static uint64_t ulp_block(const uint64_t *p, const uint64_t *q, const loose_u64 *a, const loose_u64 *b, int n, int code) {
    uint64_t top = (uint64_t)1 << (8 * ITEM_BYTES[code] - 1), farthest = 0;
    uint64_t is_float = code <= E5M2FNUZ ? ~(uint64_t)0 : 0, flip = code >= I8 && code <= I64 ? top : 0;
#pragma omp simd reduction(max : farthest)
    for (int i = 0; i < n; i++) {
        uint64_t both = finite_mask(a[i]) & finite_mask(b[i]), u = p[i], v = q[i];
        uint64_t u_size = u & (top - 1), v_size = v & (top - 1);
        uint64_t u_float = u & top ? top - u_size : top + u_size, v_float = v & top ? top - v_size : top + v_size;
        uint64_t s = (u_float & is_float) | ((u ^ flip) & ~is_float), t = (v_float & is_float) | ((v ^ flip) & ~is_float);
        uint64_t distance = s > t ? s - t : t - s;
        distance &= both;
        farthest = distance > farthest ? distance : farthest;
    }
    return farthest;
}

CLONES static int64_t count_different(const uint64_t *p, const uint64_t *q, int n) {
    int64_t different = 0;
    for (int i = 0; i < n; i++) different += p[i] != q[i];
    return different;
}

static void pair_bits(const void *ra, const void *rb, const double *a, const double *b, int n, int code, Pair *out) {
    uint64_t p[BLOCK], q[BLOCK], farthest;
    bits_from_raw(ra, n, ITEM_BYTES[code], p);
    bits_from_raw(rb, n, ITEM_BYTES[code], q);
    out->num_bits_different += count_different(p, q, n);
    farthest = ulp_block(p, q, (const loose_u64 *)a, (const loose_u64 *)b, n, code);
    out->max_ulp_diff = farthest > out->max_ulp_diff ? farthest : out->max_ulp_diff;
}

static void pair_walk(const char *a, const char *b, int64_t numel, int code_a, int code_b, double rtol, double atol,
                      Pair *out) {
    int bytes_a = ITEM_BYTES[code_a], bytes_b = ITEM_BYTES[code_b];
    unsigned saved = arithmetic_save();
    memset(out, 0, sizeof *out);
    out->numel = numel, out->argmax = -1, out->max_abs_diff = -1;
    for (int64_t i = 0; i < numel; i += BLOCK, a += BLOCK * bytes_a, b += BLOCK * bytes_b) {
        double x[BLOCK], y[BLOCK], biggest;
        int n = (int)(numel - i < BLOCK ? numel - i : BLOCK);
        int64_t before = out->num_compared;
        doubles_from_raw(a, n, code_a, x);
        doubles_from_raw(b, n, code_b, y);
        biggest = pair_block(x, y, n, rtol, atol, out);
        if (code_a == code_b) {
            if (memcmp(a, b, (size_t)(n * bytes_a))) pair_bits(a, b, x, y, n, code_a, out);
        } else
            for (int j = 0; j < n; j++) out->num_bits_different += x[j] != y[j] && (x[j] == x[j] || y[j] == y[j]);
        if (biggest > out->max_abs_diff && out->num_compared > before) {
            int j = 0;
            while (!(IS_FINITE(x[j]) && IS_FINITE(y[j]) && fabs(x[j] - y[j]) == biggest)) j++;
            out->max_abs_diff = biggest, out->argmax = i + j;
        }
    }
    if (out->argmax < 0) out->max_abs_diff = 0;
    arithmetic_restore(saved);
}

/* ------------------------------------------------------------------ Python */

static int integers_from_tuple(PyObject *tuple, Py_ssize_t expected, int64_t *out, const char *name) {
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != expected) {
        PyErr_Format(PyExc_ValueError, "%s must be a tuple of %zd integers", name, expected);
        return -1;
    }
    for (Py_ssize_t i = 0; i < expected; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (out[i] < 0) {
            if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "%s must not be negative", name);
            return -1;
        }
    }
    return 0;
}

static int dtype_code(PyObject *object, int *code) {
    long value = PyLong_AsLong(object);
    if (value == -1 && PyErr_Occurred()) return -1;
    if (value < 0 || value >= NUM_DTYPES) {
        PyErr_Format(PyExc_ValueError, "unknown dtype code %ld", value);
        return -1;
    }
    *code = (int)value;
    return 0;
}

PyDoc_STRVAR(summarise_doc,
             "summarise(data_ptr, shape, strides, dtype_code, want, out_ptr, full_shape=None, offset=None)\n"
             "Write one SUMMARY_DTYPE struct at out_ptr. Strides count elements; None means contiguous.");

static PyObject *py_summarise(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    int64_t shape[MAX_DIMS], strides[MAX_DIMS], full[MAX_DIMS], full_strides[MAX_DIMS], offset[MAX_DIMS];
    int64_t numel, flat = 0;
    int code, want;
    const char *data;
    Summary *out;
    Py_ssize_t ndim;
    Walk w;
    (void)self;
    if (nargs < 6 || nargs > 8) {
        PyErr_SetString(PyExc_TypeError, "summarise takes 6 to 8 arguments");
        return NULL;
    }
    ndim = PyTuple_Check(args[1]) ? PyTuple_Size(args[1]) : 0;
    if (ndim > MAX_DIMS) return PyErr_Format(PyExc_ValueError, "%zd dimensions, at most 16 are supported", ndim);
    data = (const char *)PyLong_AsVoidPtr(args[0]);
    out = (Summary *)PyLong_AsVoidPtr(args[5]);
    want = (int)PyLong_AsLong(args[4]);
    if (PyErr_Occurred() || integers_from_tuple(args[1], ndim, shape, "shape") || dtype_code(args[3], &code)) return NULL;
    numel = contiguous_strides((int)ndim, shape, strides);
    if (args[2] != Py_None && integers_from_tuple(args[2], ndim, strides, "strides")) return NULL;
    memcpy(full, shape, sizeof shape);
    memset(offset, 0, sizeof offset);
    if (nargs > 6 && args[6] != Py_None && integers_from_tuple(args[6], ndim, full, "full_shape")) return NULL;
    if (nargs > 7 && args[7] != Py_None && integers_from_tuple(args[7], ndim, offset, "offset")) return NULL;
    contiguous_strides((int)ndim, full, full_strides);
    for (Py_ssize_t d = 0; d < ndim; d++) {
        if (offset[d] + shape[d] > full[d])
            return PyErr_Format(PyExc_ValueError, "dim %zd: offset %lld and size %lld exceed the full size %lld", d,
                                (long long)offset[d], (long long)shape[d], (long long)full[d]);
        flat += offset[d] * full_strides[d] * (code >= C64 ? 2 : 1);
    }
    w = walk_of((int)ndim, shape, strides, full_strides, code);
    if (!data && numel) return PyErr_Format(PyExc_ValueError, "the tensor has no memory");
    if (numel > 1 << 20) {
        Py_BEGIN_ALLOW_THREADS
        summarise_walk(&w, data, numel, flat, want, out);
        Py_END_ALLOW_THREADS
    } else summarise_walk(&w, data, numel, flat, want, out);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(probe_doc, "probe(data_ptr, nbytes) -> int\nA 64-bit hash of 66 words spread over a buffer (of all, if short).");

static PyObject *py_probe(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    const char *data;
    int64_t nbytes;
    uint64_t h[4] = {1, 2, 3, 4}, word;
    (void)self;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "probe takes 2 arguments");
        return NULL;
    }
    data = (const char *)PyLong_AsVoidPtr(args[0]);
    nbytes = PyLong_AsLongLong(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (nbytes < 0) return PyErr_Format(PyExc_ValueError, "nbytes must not be negative");
    if (!data && nbytes) return PyErr_Format(PyExc_ValueError, "the tensor has no memory");
    int64_t words = nbytes / 8, count = words < 66 ? words : 66;
    /* fixed point, so that both ends are among the words read */
    uint64_t step = count > 1 ? ((uint64_t)(words - 1) << 16) / (uint64_t)(count - 1) + 1 : 0, at = 0;
    for (int64_t i = 0; i < count; i++, at += step) {
        int64_t place = (int64_t)(at >> 16);
        memcpy(&word, data + 8 * (i == count - 1 ? words - 1 : place), 8);
        h[i & 3] = (h[i & 3] ^ word) * 0x9E3779B97F4A7C15ull;
        h[i & 3] ^= h[i & 3] >> 29;
    }
    word = 0;
    memcpy(&word, data + 8 * words, (size_t)(nbytes & 7));
    h[0] ^= splitmix64(word ^ (uint64_t)nbytes);
    for (int i = 1; i < 4; i++) h[0] = splitmix64(h[0]) ^ h[i];
    return PyLong_FromUnsignedLongLong(h[0]);
}

PyDoc_STRVAR(compare_pair_doc,
             "compare_pair(a_ptr, b_ptr, numel, dtype_code_a, dtype_code_b, rtol, atol, out_ptr)\n"
             "Write one PAIR_DTYPE struct at out_ptr for two contiguous buffers. Complex: pass the real view.");

static PyObject *py_compare_pair(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    const char *a, *b;
    Pair *out;
    int64_t numel;
    int code_a, code_b;
    double rtol, atol;
    (void)self;
    if (nargs != 8) {
        PyErr_SetString(PyExc_TypeError, "compare_pair takes 8 arguments");
        return NULL;
    }
    a = (const char *)PyLong_AsVoidPtr(args[0]), b = (const char *)PyLong_AsVoidPtr(args[1]);
    numel = PyLong_AsLongLong(args[2]);
    rtol = PyFloat_AsDouble(args[5]), atol = PyFloat_AsDouble(args[6]);
    out = (Pair *)PyLong_AsVoidPtr(args[7]);
    if (PyErr_Occurred() || dtype_code(args[3], &code_a) || dtype_code(args[4], &code_b)) return NULL;
    if (code_a >= C64 || code_b >= C64 || numel < 0) {
        PyErr_SetString(PyExc_ValueError, "compare_pair takes real dtypes and numel >= 0");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    pair_walk(a, b, numel, code_a, code_b, rtol, atol, out);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyDoc_STRVAR(allow_avx512_doc, "allow_avx512(allow) -> bool\nSwitch the AVX-512 loops for tests; returns whether they now run.");

static PyObject *py_allow_avx512(PyObject *self, PyObject *allow) {
    int wanted = PyObject_IsTrue(allow);
    (void)self;
    if (wanted < 0) return NULL;
    use_avx512 = wanted && has_avx512;
    return PyBool_FromLong(use_avx512);
}

static PyMethodDef methods[] = {
    {"summarise", FASTCALL(py_summarise), METH_FASTCALL, summarise_doc},
    {"probe", FASTCALL(py_probe), METH_FASTCALL, probe_doc},
    {"allow_avx512", py_allow_avx512, METH_O, allow_avx512_doc},
    {"compare_pair", FASTCALL(py_compare_pair), METH_FASTCALL, compare_pair_doc},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module) {
    fill_tables();
    return PyModule_AddIntConstant(module, "SUMMARY_BYTES", sizeof(Summary)) ||
           PyModule_AddIntConstant(module, "PAIR_BYTES", sizeof(Pair)) ||
           PyModule_AddIntConstant(module, "HAS_AVX512", has_avx512) || add_rows(module);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)module_exec}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kernels", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModuleDef_Init(&definition); }
