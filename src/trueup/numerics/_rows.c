/* The summaries of one step, and the short way of a small tensor into them.
 *
 * Rows is rows.py's class: blocks of Summary that never move, the kind (dtype, shape, device, place) of each row by
 * its number, and for every kind the rows by their digest, so that what is alike is kept once.
 *
 * Source is a framework's tensor class, read through the table of C functions that it hands out for DLPack (the
 * attribute __dlpack_c_exchange_api__): address, shape, strides and dtype of a tensor without a Python object for any
 * of them. What is not small, plain, on the CPU and of a kind met before is left to the caller.
 */
#include "_kernels.h"
#include <stdlib.h>
#include <string.h>

enum { BLOCK_ROWS = 256, SMALL_DIMS = 6 };

/* ------------------------------------------------------------------ tables that grow */

typedef struct { uint64_t digest; int32_t kind, row; } Seen; /* row < 0: free */
typedef struct { int64_t shape[SMALL_DIMS]; int32_t code, ndim, kind; } Known; /* kind < 0: free */

typedef struct {
    PyObject_HEAD
    PyObject *blocks; /* bytearrays of BLOCK_ROWS summaries */
    Summary *next;    /* where the next row is written */
    int32_t *kinds;   /* of every row */
    int64_t num_rows, capacity, kinds_size;
    Seen *seen;
    int64_t num_seen, seen_size; /* sizes are powers of two */
    Known *known;
    int64_t num_known, known_size;
} Rows;

static PyTypeObject *rows_type;

static Seen *find_seen(Seen *table, int64_t size, uint64_t digest, int32_t kind) {
    uint64_t at = splitmix64(digest + (uint64_t)kind * 0x9E3779B97F4A7C15ull);
    for (;; at++) {
        Seen *one = &table[at & (uint64_t)(size - 1)];
        if (one->row < 0 || (one->digest == digest && one->kind == kind)) return one;
    }
}

static Known *find_known(Known *table, int64_t size, int code, int ndim, const int64_t *shape) {
    uint64_t at = (uint64_t)(code * 64 + ndim);
    for (int d = 0; d < ndim; d++) at = splitmix64(at ^ (uint64_t)shape[d]);
    for (;; at++) {
        Known *one = &table[at & (uint64_t)(size - 1)];
        if (one->kind < 0) return one;
        if (one->code == code && one->ndim == ndim && !memcmp(one->shape, shape, (size_t)ndim * 8)) return one;
    }
}

static void *out_of_memory(void) { return (void *)PyErr_NoMemory(); }

static Seen *new_seen(int64_t size) {
    Seen *table = malloc((size_t)size * sizeof *table);
    if (!table) return out_of_memory();
    for (int64_t i = 0; i < size; i++) table[i].row = -1;
    return table;
}

static Known *new_known(int64_t size) {
    Known *table = malloc((size_t)size * sizeof *table);
    if (!table) return out_of_memory();
    for (int64_t i = 0; i < size; i++) table[i].kind = -1;
    return table;
}

static int grow_seen(Rows *self) {
    Seen *table = new_seen(2 * self->seen_size);
    if (!table) return -1;
    for (int64_t i = 0; i < self->seen_size; i++)
        if (self->seen[i].row >= 0)
            *find_seen(table, 2 * self->seen_size, self->seen[i].digest, self->seen[i].kind) = self->seen[i];
    free(self->seen);
    self->seen = table, self->seen_size *= 2;
    return 0;
}

static int grow_known(Rows *self) {
    Known *table = new_known(2 * self->known_size);
    if (!table) return -1;
    for (int64_t i = 0; i < self->known_size; i++) {
        const Known *one = &self->known[i];
        if (one->kind >= 0) *find_known(table, 2 * self->known_size, one->code, one->ndim, one->shape) = *one;
    }
    free(self->known);
    self->known = table, self->known_size *= 2;
    return 0;
}

static int add_block(Rows *self) {
    Py_ssize_t nbytes = (Py_ssize_t)(BLOCK_ROWS * sizeof(Summary));
    int64_t capacity = self->capacity + BLOCK_ROWS;
    PyObject *block;
    if (capacity > self->kinds_size) {
        int64_t size = 2 * capacity;
        int32_t *kinds = realloc(self->kinds, (size_t)size * sizeof *kinds);
        if (!kinds) return out_of_memory(), -1;
        self->kinds = kinds, self->kinds_size = size;
    }
    block = PyByteArray_FromStringAndSize(NULL, nbytes);
    if (!block) return -1;
    memset(PyByteArray_AsString(block), 0, (size_t)nbytes);
    if (PyList_Append(self->blocks, block)) return Py_DECREF(block), -1;
    Py_DECREF(block); /* the list holds it */
    self->next = (Summary *)PyByteArray_AsString(block);
    self->capacity = capacity;
    return 0;
}

/* What is written at `next` becomes a row; returns its number, or -1 with an exception set. */
static int64_t keep_row(Rows *self, int32_t kind) {
    int64_t row = self->num_rows;
    self->kinds[row] = kind;
    self->num_rows++, self->next++;
    if (self->num_rows == self->capacity && add_block(self)) return -1;
    return row;
}

/* As keep_row, but an earlier row of the kind with the same digest stands for it. */
static int64_t commit_row(Rows *self, int32_t kind) {
    Seen *one = find_seen(self->seen, self->seen_size, self->next->digest, kind);
    if (one->row >= 0) return memset(self->next, 0, sizeof *self->next), one->row;
    one->digest = self->next->digest, one->kind = kind, one->row = (int32_t)self->num_rows;
    if (2 * ++self->num_seen > self->seen_size && grow_seen(self)) return -1;
    return keep_row(self, kind);
}

/* ------------------------------------------------------------------ Rows */

static void rows_dealloc(PyObject *object) {
    Rows *self = (Rows *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->blocks);
    free(self->kinds), free(self->seen), free(self->known);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *rows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *object;
    Rows *self;
    if (PyTuple_Size(args) || kwargs) return PyErr_Format(PyExc_TypeError, "Rows takes no arguments");
    object = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!object) return NULL;
    self = (Rows *)object;
    self->seen_size = 1024, self->known_size = 64;
    self->blocks = PyList_New(0), self->seen = new_seen(self->seen_size), self->known = new_known(self->known_size);
    if (!self->blocks || !self->seen || !self->known || add_block(self)) {
        Py_DECREF(object);
        return NULL;
    }
    return object;
}

static int kind_of(PyObject *number, int32_t *kind) {
    long value = PyLong_AsLong(number);
    if (value == -1 && PyErr_Occurred()) return -1;
    if (value < 0 || value > INT32_MAX) return PyErr_Format(PyExc_ValueError, "%ld is no kind", value), -1;
    *kind = (int32_t)value;
    return 0;
}

static PyObject *number_or_null(int64_t row) { return row < 0 ? NULL : PyLong_FromLongLong(row); }

/* Copies what was written at the address, a kernel's `out_ptr`, to `next`. */
static int bring(Rows *self, PyObject *const *args, Py_ssize_t nargs, int32_t *kind) {
    const void *from;
    if (nargs != 2) return PyErr_Format(PyExc_TypeError, "a kind and an address are wanted"), -1;
    from = PyLong_AsVoidPtr(args[1]);
    if (PyErr_Occurred() || kind_of(args[0], kind)) return -1;
    if (from) memcpy(self->next, from, sizeof *self->next);
    return 0;
}

PyDoc_STRVAR(commit_doc, "commit(kind, address) -> int\nNumber of a row with what is written there, or of an earlier one "
                         "with the same kind and digest.");
static PyObject *rows_commit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    int32_t kind;
    return bring((Rows *)self, args, nargs, &kind) ? NULL : number_or_null(commit_row((Rows *)self, kind));
}

PyDoc_STRVAR(keep_doc, "keep(kind, address) -> int\nNumber of a new row with what is written there; all zero for address 0.");
static PyObject *rows_keep(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    int32_t kind;
    return bring((Rows *)self, args, nargs, &kind) ? NULL : number_or_null(keep_row((Rows *)self, kind));
}

PyDoc_STRVAR(learn_doc, "learn(kind, dtype_code, shape)\nFrom now on a Source takes tensors of this dtype and shape.");
static PyObject *rows_learn(PyObject *object, PyObject *const *args, Py_ssize_t nargs) {
    Rows *self = (Rows *)object;
    int64_t shape[SMALL_DIMS];
    int32_t kind;
    long code;
    Py_ssize_t ndim;
    Known *one;
    if (nargs != 3 || !PyTuple_Check(args[2])) return PyErr_Format(PyExc_TypeError, "learn takes a kind, a code, a shape");
    if (kind_of(args[0], &kind)) return NULL;
    code = PyLong_AsLong(args[1]), ndim = PyTuple_Size(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (ndim > SMALL_DIMS) Py_RETURN_NONE;
    for (Py_ssize_t d = 0; d < ndim; d++) {
        shape[d] = PyLong_AsLongLong(PyTuple_GetItem(args[2], d));
        if (PyErr_Occurred()) return NULL;
    }
    one = find_known(self->known, self->known_size, (int)code, (int)ndim, shape);
    if (one->kind >= 0) Py_RETURN_NONE;
    memcpy(one->shape, shape, sizeof shape);
    one->code = (int32_t)code, one->ndim = (int32_t)ndim, one->kind = kind;
    if (2 * ++self->num_known > self->known_size && grow_known(self)) return NULL;
    Py_RETURN_NONE;
}

static Py_ssize_t rows_length(PyObject *self) { return (Py_ssize_t)((Rows *)self)->num_rows; }
static PyObject *rows_blocks(PyObject *self, void *unused) {
    (void)unused;
    return PyList_AsTuple(((Rows *)self)->blocks);
}
static PyObject *rows_kinds(PyObject *self, void *unused) {
    (void)unused;
    return PyBytes_FromStringAndSize((const char *)((Rows *)self)->kinds, (Py_ssize_t)(((Rows *)self)->num_rows * 4));
}

static PyMethodDef rows_methods[] = {
    {"commit", FASTCALL(rows_commit), METH_FASTCALL, commit_doc},
    {"keep", FASTCALL(rows_keep), METH_FASTCALL, keep_doc},
    {"learn", FASTCALL(rows_learn), METH_FASTCALL, learn_doc},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef rows_attributes[] = {
    {"blocks", rows_blocks, NULL, "bytearrays of BLOCK_ROWS rows; they never move", NULL},
    {"kinds", rows_kinds, NULL, "the kind of every row: bytes of int32", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot rows_slots[] = {
    {Py_tp_new, (void *)rows_new},         {Py_tp_dealloc, (void *)rows_dealloc}, {Py_tp_methods, rows_methods},
    {Py_tp_getset, rows_attributes},       {Py_sq_length, (void *)rows_length},
    {Py_tp_doc, (void *)"The summaries of one step; see rows.py."}, {0, NULL},
};
static PyType_Spec rows_spec = {"trueup.numerics._kernels.Rows", sizeof(Rows), 0, Py_TPFLAGS_DEFAULT, rows_slots};

/* ------------------------------------------------------------------ Source: tensors read through DLPack's table */

typedef struct { int32_t type, id; } DLDevice;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct { /* version 1 of the table */
    uint32_t major, minor;
    void *older;
    void *allocate, *to_managed, *from_managed;
    int (*view)(void *tensor, DLTensor *out);
    void *stream;
} Exchange;
enum { DL_CPU = 1, DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6,
       DL_E4M3FN = 10, DL_E4M3FNUZ = 11, DL_E5M2 = 12, DL_E5M2FNUZ = 13 };

/* Of dtypes whose values are what is in memory: a complex tensor may be conjugated only when it is read. */
static int code_of(DLDataType dtype) {
    if (dtype.lanes != 1) return -1;
    switch (dtype.code) {
    case DL_FLOAT: return dtype.bits == 32 ? F32 : dtype.bits == 64 ? F64 : dtype.bits == 16 ? F16 : -1;
    case DL_BFLOAT: return dtype.bits == 16 ? BF16 : -1;
    case DL_INT: return dtype.bits == 64 ? I64 : dtype.bits == 32 ? I32 : dtype.bits == 16 ? I16 : dtype.bits == 8 ? I8 : -1;
    case DL_UINT: return dtype.bits == 64 ? U64 : dtype.bits == 32 ? U32 : dtype.bits == 16 ? U16 : dtype.bits == 8 ? U8 : -1;
    case DL_BOOL: return dtype.bits == 8 ? BOOL : -1;
    case DL_E4M3FN: return E4M3FN;
    case DL_E4M3FNUZ: return E4M3FNUZ;
    case DL_E5M2: return E5M2;
    case DL_E5M2FNUZ: return E5M2FNUZ;
    default: return -1;
    }
}

typedef struct {
    PyObject_HEAD
    int (*view)(void *tensor, DLTensor *out);
    PyObject *table, *classes, *is_negated;
    int64_t limit;
    int want;
} Source;

static void source_dealloc(PyObject *object) {
    Source *self = (Source *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->table), Py_XDECREF(self->classes), Py_XDECREF(self->is_negated);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(source_doc,
             "Source(table, classes, is_negated, want, limit)\n"
             "Tensors of these very classes, read through DLPack's exchange table.\n\n"
             "is_negated(tensor): whether the values are those in memory with the other sign. want: HAS_* bits, the\n"
             "digest among them. limit: tensors of so many elements are left to the caller.\n\n"
             "ValueError: a table of a version that is not known, or without the function that is needed.");

static PyObject *source_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *table, *classes, *is_negated, *object;
    const Exchange *exchange;
    long long limit;
    int want;
    Source *self;
    if (kwargs) return PyErr_Format(PyExc_TypeError, "Source takes no keywords");
    if (!PyArg_ParseTuple(args, "OO!OiL", &table, &PyTuple_Type, &classes, &is_negated, &want, &limit)) return NULL;
    exchange = PyCapsule_GetPointer(table, "dlpack_exchange_api");
    if (!exchange) return NULL;
    if (exchange->major != 1 || !exchange->view)
        return PyErr_Format(PyExc_ValueError, "an exchange table of version %u: not known", exchange->major);
    object = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!object) return NULL;
    self = (Source *)object;
    Py_INCREF(table), Py_INCREF(classes), Py_INCREF(is_negated);
    self->table = table, self->classes = classes, self->is_negated = is_negated;
    self->view = exchange->view, self->limit = limit, self->want = want;
    return object;
}

static int is_of_classes(const Source *self, PyObject *tensor) {
    PyObject *type = (PyObject *)Py_TYPE(tensor);
    Py_ssize_t num = PyTuple_Size(self->classes);
    for (Py_ssize_t i = 0; i < num; i++)
        if (PyTuple_GetItem(self->classes, i) == type) return 1;
    return 0;
}

PyDoc_STRVAR(take_doc,
             "take(rows, tensor) -> int\n"
             "Summarise the tensor and return its row; -1 where that is left to the caller, who lost nothing.");

static PyObject *source_take(PyObject *object, PyObject *const *args, Py_ssize_t nargs) {
    Source *self = (Source *)object;
    DLTensor tensor;
    int64_t numel = 1;
    int code;
    Rows *rows;
    const Known *known;
    PyObject *negated;
    if (nargs != 2 || Py_TYPE(args[0]) != rows_type) return PyErr_Format(PyExc_TypeError, "take takes Rows and a tensor");
    rows = (Rows *)args[0];
    if (!is_of_classes(self, args[1])) goto left;
    if (self->view(args[1], &tensor)) { /* sparse, quantised, without memory: the long way says which */
        PyErr_Clear();
        goto left;
    }
    code = code_of(tensor.dtype);
    if (tensor.device.type != DL_CPU || code < 0 || tensor.ndim > SMALL_DIMS || !tensor.strides) goto left;
    for (int d = 0; d < tensor.ndim; d++) numel *= tensor.shape[d];
    if (numel >= self->limit || (!tensor.data && numel)) goto left;
    known = find_known(rows->known, rows->known_size, code, tensor.ndim, tensor.shape);
    if (known->kind < 0) goto left;
    negated = PyObject_CallFunctionObjArgs(self->is_negated, args[1], NULL);
    if (!negated) PyErr_Clear();
    Py_XDECREF(negated);
    if (negated != Py_False) goto left;
    summarise_tensor((const char *)tensor.data + tensor.byte_offset, tensor.ndim, tensor.shape, tensor.strides, code,
                     self->want, rows->next);
    return number_or_null(commit_row(rows, known->kind));
left:
    return PyLong_FromLong(-1);
}

static PyMethodDef source_methods[] = {
    {"take", FASTCALL(source_take), METH_FASTCALL, take_doc},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot source_slots[] = {
    {Py_tp_new, (void *)source_new},   {Py_tp_dealloc, (void *)source_dealloc},
    {Py_tp_methods, source_methods},   {Py_tp_doc, (void *)source_doc}, {0, NULL},
};
static PyType_Spec source_spec = {"trueup.numerics._kernels.Source", sizeof(Source), 0, Py_TPFLAGS_DEFAULT, source_slots};

int add_rows(PyObject *module) {
    PyObject *rows = PyType_FromSpec(&rows_spec), *source = PyType_FromSpec(&source_spec);
    if (!rows || !source) return -1;
    rows_type = (PyTypeObject *)rows; /* held for good */
    if (PyModule_AddObjectRef(module, "Rows", rows) || PyModule_AddObjectRef(module, "Source", source)) return -1;
    Py_DECREF(source);
    return PyModule_AddIntConstant(module, "BLOCK_ROWS", BLOCK_ROWS);
}
