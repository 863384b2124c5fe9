/* What the C files of the kernel share. */
#ifndef TRUEUP_KERNELS_H
#define TRUEUP_KERNELS_H
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stdint.h>

#ifdef __GNUC__
#define SHARED __attribute__((visibility("hidden")))
#else
#define SHARED
#endif

enum { MAX_DIMS = 16, SKETCH = 64 };
enum { /* dtypes.py holds the same numbers */
    F64, F32, F16, BF16, E4M3FN, E5M2, E4M3FNUZ, E5M2FNUZ,
    I8, I16, I32, I64, U8, U16, U32, U64, BOOL, C64, C128, NUM_DTYPES
};

typedef struct { /* SUMMARY_DTYPE */
    int64_t numel, num_nan, num_posinf, num_neginf, num_zero;
    double minimum, maximum, mean, l2_norm, smallest_nonzero;
    uint64_t digest;
    uint32_t crc32, flags;
    float sketch[SKETCH];
} Summary;

/* One whole tensor, at most MAX_DIMS dimensions; strides count elements. */
SHARED void summarise_tensor(const void *data, int ndim, const int64_t *shape, const int64_t *strides, int code,
                             int want, Summary *out);
SHARED uint64_t splitmix64(uint64_t x);

/* Adds the types of _rows.c; 0, or -1 with an exception set. */
SHARED int add_rows(PyObject *module);

#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))
#endif
