/* Numbers out of the lines of a training log, in one pass over the bytes.
 *
 * scan() looks at the lines that hold a marker; after each key of such a line it reads one number. lines.py says what
 * the numbers mean and holds the same definition in polars, which stands in where this file was not built and which
 * the tests compare it with.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KEYS = 32, LONGEST_NUMBER = 64 };

typedef struct {
    const char *text;
    Py_ssize_t size;
    char skip;             /* the number stands after this character, the first one after the key; 0: right after the key */
    uint8_t shift[256];    /* Horspool */
} Key;

static const double POWERS_OF_TEN[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                       1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static void key_prepare(Key *key) {
    memset(key->shift, (int)key->size, sizeof key->shift);
    for (Py_ssize_t i = 0; i + 1 < key->size; i++) key->shift[(uint8_t)key->text[i]] = (uint8_t)(key->size - 1 - i);
}

static const char *key_find(const Key *key, const char *at, const char *end) {
    const Py_ssize_t last = key->size - 1;
    while (end - at >= key->size) {
        if (at[last] == key->text[last] && memcmp(at, key->text, (size_t)last) == 0) return at;
        at += key->shift[(uint8_t)at[last]];
    }
    return NULL;
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }

static int starts(const char *at, const char *end, const char *lower) {
    for (; *lower; lower++, at++)
        if (at >= end || (*at | 0x20) != *lower) return 0;
    return 1;
}

/* A decimal number of any length, rounded correctly. */
static double number_by_library(const char *begin, const char *end) {
    char copy[LONGEST_NUMBER];
    size_t n = 0;
    for (; begin < end && n + 1 < sizeof copy; begin++)
        if (*begin != ',') copy[n++] = *begin;
    copy[n] = 0;
    return strtod(copy, NULL);
}

/* The number at ``at``: 1 and its value, or 0 where none stands there. Knows nan, inf, true and false in any case,
 * thousands set off by commas, and K M B T directly behind the digits. */
static int number(const char *at, const char *end, double *value) {
    while (at < end && (*at == ' ' || *at == '[' || *at == '(' || *at == '\'' || *at == '"')) at++;
    const int plain = at < end && is_digit(*at);
    if (!plain && starts(at, end, "tensor(")) at += 7;
    if (!plain && (starts(at, end, "np.float64(") || starts(at, end, "np.float32("))) at += 11;
    const char *begin = at;
    int negative = 0;
    if (at < end && (*at == '-' || *at == '+')) negative = *at++ == '-';
    if (!plain) {
        if (starts(at, end, "nan")) return *value = NAN, 1;
        if (starts(at, end, "inf")) return *value = negative ? -INFINITY : INFINITY, 1;
        if (starts(at, end, "true")) return *value = 1, 1;
        if (starts(at, end, "false")) return *value = 0, 1;
    }
    uint64_t mantissa = 0;
    int digits = 0, after = 0, exponent = 0, seen = 0;
    for (; at < end; at++) {
        if (is_digit(*at)) {
            seen = 1;
            if (digits < 19) mantissa = mantissa * 10 + (uint64_t)(*at - '0'), digits += mantissa > 0;
            else exponent++, digits++;
        } else if (!(*at == ',' && seen && end - at > 3 && is_digit(at[1]) && is_digit(at[2]) && is_digit(at[3]) &&
                     (end - at == 4 || !is_digit(at[4]))))
            break;
    }
    if (at < end && *at == '.')
        for (at++; at < end && is_digit(*at); at++) {
            seen = 1;
            if (digits < 19) mantissa = mantissa * 10 + (uint64_t)(*at - '0'), digits += mantissa > 0, after++;
            else digits++;
        }
    if (!seen) return 0;
    exponent -= after;
    if (end - at > 1 && (*at | 0x20) == 'e') {
        const char *digit = at + 1;
        int down = 0, power = 0;
        if (*digit == '-' || *digit == '+') down = *digit++ == '-';
        if (digit < end && is_digit(*digit)) {
            for (; digit < end && is_digit(*digit); digit++) power = power < 9999 ? power * 10 + (*digit - '0') : power;
            exponent += down ? -power : power;
            at = digit;
        }
    }
    double size;
    if (digits <= 19 && mantissa < (1ull << 53) && exponent >= -22 && exponent <= 22)
        size = exponent < 0 ? (double)mantissa / POWERS_OF_TEN[-exponent] : (double)mantissa * POWERS_OF_TEN[exponent];
    else
        size = fabs(number_by_library(begin, at));
    if (at < end) {
        const char *unit = memchr("KMBT", *at, 4);
        if (unit && (end - at == 1 || at[1] == ' ' || at[1] == '\r' || at[1] == '\n')) size *= POWERS_OF_TEN[3 * (unit - "KMBT" + 1)];
    }
    *value = negative ? -size : size;
    return 1;
}

/* gaps: how far behind the key before it each key stood in the line before; looked at first, for lines are alike. */
static void scan_line(const char *line, const char *end, const Key *keys, Py_ssize_t num_keys, Py_ssize_t *gaps,
                      double *out, uint8_t *there, Py_ssize_t stride) {
    const char *cursor = line;
    for (Py_ssize_t k = 0; k < num_keys; k++) {
        const char *found = NULL;
        if (gaps[k] >= 0 && end - cursor >= gaps[k] + keys[k].size &&
            memcmp(cursor + gaps[k], keys[k].text, (size_t)keys[k].size) == 0)
            found = cursor + gaps[k];
        if (!found) found = key_find(&keys[k], cursor, end);
        if (!found && cursor > line) found = key_find(&keys[k], line, end);
        if (!found) continue;
        gaps[k] = found - cursor;
        cursor = found + keys[k].size;
        const char *at = cursor;
        if (keys[k].skip) {
            at = memchr(at, keys[k].skip, (size_t)(end - at));
            if (!at) continue;
            at++;
        }
        there[k * stride] = (uint8_t)number(at, end, &out[k * stride]);
    }
}

static Py_ssize_t scan(const char *data, const char *end, const Key *marker, const Key *keys, Py_ssize_t num_keys,
                       double *out, uint8_t *there, Py_ssize_t capacity) {
    Py_ssize_t rows = 0, gaps[MAX_KEYS];
    const char *from = data;
    for (Py_ssize_t k = 0; k < num_keys; k++) gaps[k] = -1;
    while (rows < capacity) {
        const char *hit = key_find(marker, from, end);
        if (!hit) break;
        const char *line = hit, *stop;
        while (line > data && line[-1] != '\n') line--;
        stop = memchr(hit, '\n', (size_t)(end - hit));
        if (!stop) stop = end;
        scan_line(line, stop, keys, num_keys, gaps, out + rows, there + rows, capacity);
        rows++;
        from = stop;
    }
    return rows;
}

PyDoc_STRVAR(count_doc, "count(address, size, marker): how often the bytes stand there, overlaps apart");
PyDoc_STRVAR(scan_doc,
             "scan(address, size, marker, keys, skips, out, there, capacity): rows filled\n\n"
             "keys: tuple of bytes; skips: bytes, one a key, 0 for none; out: float64 (keys, capacity); there: uint8 of that\n"
             "shape, zeroed. Addresses as integers.");

static int key_from_bytes(PyObject *object, char skip, Key *key) {
    char *text;
    if (PyBytes_AsStringAndSize(object, &text, &key->size) < 0) return -1;
    if (key->size < 1 || key->size > 255) {
        PyErr_SetString(PyExc_ValueError, "a key has 1 to 255 bytes");
        return -1;
    }
    key->text = text;
    key->skip = skip;
    key_prepare(key);
    return 0;
}

static PyObject *py_count(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    Key marker;
    if (nargs != 3) return PyErr_SetString(PyExc_TypeError, "count takes 3 arguments"), NULL;
    const char *data = PyLong_AsVoidPtr(args[0]);
    Py_ssize_t size = PyLong_AsSsize_t(args[1]), rows = 0;
    if (PyErr_Occurred() || key_from_bytes(args[2], 0, &marker) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    const char *end = data + size, *at = data;
    while ((at = key_find(&marker, at, end))) rows++, at += marker.size;
    Py_END_ALLOW_THREADS
    return PyLong_FromSsize_t(rows);
}

static PyObject *py_scan(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    Key marker, keys[MAX_KEYS];
    char *skips;
    Py_ssize_t num_skips, rows;
    if (nargs != 8 || !PyTuple_Check(args[3])) return PyErr_SetString(PyExc_TypeError, "scan takes 8 arguments"), NULL;
    const char *data = PyLong_AsVoidPtr(args[0]);
    Py_ssize_t size = PyLong_AsSsize_t(args[1]), num_keys = PyTuple_Size(args[3]);
    double *out = PyLong_AsVoidPtr(args[5]);
    uint8_t *there = PyLong_AsVoidPtr(args[6]);
    Py_ssize_t capacity = PyLong_AsSsize_t(args[7]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[4], &skips, &num_skips) < 0) return NULL;
    if (num_keys > MAX_KEYS || num_skips != num_keys) return PyErr_SetString(PyExc_ValueError, "too many keys, or not as many skips"), NULL;
    if (key_from_bytes(args[2], 0, &marker) < 0) return NULL;
    for (Py_ssize_t k = 0; k < num_keys; k++)
        if (key_from_bytes(PyTuple_GetItem(args[3], k), skips[k], &keys[k]) < 0) return NULL;
    Py_BEGIN_ALLOW_THREADS
    rows = scan(data, data + size, &marker, keys, num_keys, out, there, capacity);
    Py_END_ALLOW_THREADS
    return PyLong_FromSsize_t(rows);
}

static PyMethodDef METHODS[] = {
    {"count", (PyCFunction)(void (*)(void))py_count, METH_FASTCALL, count_doc},
    {"scan", (PyCFunction)(void (*)(void))py_scan, METH_FASTCALL, scan_doc},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_scan", NULL, -1, METHODS, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__scan(void) { return PyModule_Create(&MODULE); }
