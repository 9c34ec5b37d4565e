/* Sifter: decide most lines of a log by their shape alone.
 *
 * A shape is a line with every digit made '0'. The caller teaches the sifter shapes whose verdict cannot depend on their digits (or
 * only on those at the guarded places) and gets back the lines of all other shapes. rules/sifter.py has the same in Python, states
 * the contract, and is what tests hold this to.
 */
#include "_sifter.h"
#include "_sifter_notes.h"
#include "_sifter_ranks.h"
#include "_sifter_shapes.h"
#include "_sifter_verdicts.h"

static int room_for_lines(Sifter *self) {
    if (self->line_count < self->line_room)
        return 0;
    Py_ssize_t room = self->line_room ? self->line_room * 2 : 8192;
    uint32_t *starts = PyMem_Realloc(self->starts, (room + 1) * sizeof *starts);
    if (starts)
        self->starts = starts;
    uint8_t *verdicts = starts ? PyMem_Realloc(self->verdicts, room) : NULL;
    if (!verdicts) {
        PyErr_NoMemory();
        return -1;
    }
    self->verdicts = verdicts;
    self->line_room = room;
    return 0;
}

/* Appends `item`, which is consumed. */
static int append(PyObject *list, PyObject *item) {
    int status = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return status;
}

static void release_block(Sifter *self) {
    if (self->view.obj)
        PyBuffer_Release(&self->view);
    self->next = self->end = NULL;
}

static PyObject *open_block(Sifter *self, PyObject *arguments) {
    Py_buffer view;
    long long first_number;
    if (!PyArg_ParseTuple(arguments, "y*L", &view, &first_number))
        return NULL;
    const uint8_t *block = view.buf;
    if (view.len && (block[view.len - 1] != '\n' || view.len > UINT32_MAX)) {
        PyErr_SetString(PyExc_ValueError, "a block holds whole lines and is under 4 GiB");
        PyBuffer_Release(&view);
        return NULL;
    }
    release_block(self);
    self->view = view;
    self->next = block;
    self->end = block + view.len;
    self->first_number = first_number;
    self->line_count = 0;
    self->touched_count = 0;
    self->run_count = 0;
    Py_RETURN_NONE;
}

static PyObject *sift(Sifter *self, PyObject *Py_UNUSED(ignored)) {
    PyObject *indexes = PyList_New(0), *lines = PyList_New(0), *repeated = PyList_New(0);
    if (!indexes || !lines || !repeated)
        goto failed;
    const uint8_t *block = self->view.buf, *end = self->end, *line = self->next;
    Py_ssize_t before = self->line_count;
    while (line < end && PyList_GET_SIZE(repeated) < MAX_REPEATED) {
        const uint8_t *stop = memchr(line, '\n', end - line);
        size_t length = stop - line;
        uint32_t index = (uint32_t)self->line_count;
        if (room_for_lines(self))
            goto failed;
        self->starts[index] = (uint32_t)(line - block);
        self->line_count++;
        Shape *shape = NULL;
        int seen_before = 0;
        if (length <= MAX_SHAPE_BYTES) {
            uint64_t hash = shape_of(self, line, length);
            shape = find_shape(self, hash, line, length);
            if (!shape) {
                uint64_t *seen = &self->seen[hash >> 3 & (SEEN_SLOTS - 1)];
                seen_before = *seen == hash;
                *seen = hash;
            }
        }
        if (shape && shape->rule != RULE_ASK) {
            if (apply_shape(self, shape, line, index))
                goto failed;
            if (shape->rule == RULE_KEEP) {
                self->verdicts[index] = KEPT;
            } else {
                self->verdicts[index] = DROPPED;
                self->dropped[shape->rule]++;
            }
        } else {
            self->verdicts[index] = UNKNOWN;
            if (seen_before && append(repeated, PyLong_FromSsize_t(PyList_GET_SIZE(lines))))
                goto failed;
            if (append(indexes, PyLong_FromUnsignedLong(index)) || append(lines, PyBytes_FromStringAndSize((const char *)line, length)))
                goto failed;
        }
        line = stop + 1;
    }
    if (room_for_lines(self))
        goto failed;
    self->starts[self->line_count] = (uint32_t)(line - block);
    self->lines += self->line_count - before;
    self->next = line;
    return Py_BuildValue("(NNNO)", indexes, lines, repeated, line < end ? Py_True : Py_False);
failed:
    release_block(self);
    self->run_count = 0;
    self->line_count = 0;
    Py_XDECREF(indexes);
    Py_XDECREF(lines);
    Py_XDECREF(repeated);
    return NULL;
}

/* A record for what Python says about a line of this block; NULL with an exception set where there is no such line or rank. */
static Rank *record_of(Sifter *self, unsigned long index, long long named_rank, int64_t *rank) {
    if (index >= (unsigned long)self->line_count || named_rank < -1) {
        PyErr_SetString(PyExc_ValueError, "no such line or rank");
        return NULL;
    }
    *rank = named_rank < MAX_RANK ? named_rank : -1;
    return rank_record(self, rank);
}

static PyObject *settle(Sifter *self, PyObject *arguments) {
    PyObject *indexes, *rules, *ranks;
    if (!PyArg_ParseTuple(arguments, "O!O!O!", &PyList_Type, &indexes, &PyList_Type, &rules, &PyList_Type, &ranks))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(indexes);
    if (PyList_GET_SIZE(rules) != count || PyList_GET_SIZE(ranks) != count) {
        PyErr_SetString(PyExc_ValueError, "a rule and a rank for each line");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        unsigned long index = PyLong_AsUnsignedLong(PyList_GET_ITEM(indexes, i));
        long rule = PyLong_AsLong(PyList_GET_ITEM(rules, i));
        long long named_rank = PyLong_AsLongLong(PyList_GET_ITEM(ranks, i));
        if (PyErr_Occurred())
            return NULL;
        int64_t rank;
        Rank *record = record_of(self, index, named_rank, &rank);
        if (!record)
            return NULL;
        if (rule >= (long)self->rule_count) {
            PyErr_SetString(PyExc_ValueError, "no such rule");
            return NULL;
        }
        self->verdicts[index] = rule < 0 ? KEPT : DROPPED;
        if (rule >= 0)
            self->dropped[rule]++;
        touch(self, record, rank, (uint32_t)index);
    }
    Py_RETURN_NONE;
}

static PyObject *measure(Sifter *self, PyObject *arguments) {
    unsigned long index;
    long long named_rank;
    const char *time;
    Py_ssize_t time_length;
    PyObject *values;
    if (!PyArg_ParseTuple(arguments, "kLy#O!", &index, &named_rank, &time, &time_length, &PyTuple_Type, &values))
        return NULL;
    int64_t rank;
    Rank *record = record_of(self, index, named_rank, &rank);
    if (!record)
        return NULL;
    int64_t number = self->first_number + index;
    Point *point = new_point(self, record, number, time, time_length);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++) {
        unsigned int series;
        const char *text;
        Py_ssize_t length;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(values, i), "Iy#", &series, &text, &length))
            return NULL;
        if (series >= MAX_SERIES) {
            PyErr_SetString(PyExc_ValueError, "no such series");
            return NULL;
        }
        if (add_value(record, point, series, read_value((const uint8_t *)text, length), number))
            return NULL;
    }
    Py_RETURN_NONE;
}

static char *write_number(char *out, uint64_t number) {
    char digits[20];
    int count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count)
        *out++ = digits[--count];
    *out++ = '\t';
    return out;
}

static PyObject *close_block(Sifter *self, PyObject *argument) {
    Py_buffer view;
    if (PyObject_GetBuffer(argument, &view, PyBUF_SIMPLE))
        return NULL;
    const char *block = view.buf, *end = block + view.len;
    PyObject *kept = NULL;
    if (self->next != self->end) {
        PyErr_SetString(PyExc_ValueError, "the block was not sifted to its end");
        goto done;
    }
    /* The block as it stood in the source may have longer lines than the one that was sifted: their starts are found anew. */
    const char *line = block;
    for (Py_ssize_t i = 0; i < self->line_count && view.len != self->view.len; i++) {
        const char *stop = line < end ? memchr(line, '\n', end - line) : NULL;
        if (!stop) {
            PyErr_SetString(PyExc_ValueError, "not as many lines as were sifted");
            goto done;
        }
        self->starts[i] = (uint32_t)(line - block);
        self->starts[i + 1] = (uint32_t)(stop + 1 - block);
        line = stop + 1;
    }
    size_t size = 0, lines = 0;
    for (Py_ssize_t i = 0; i < self->line_count; i++)
        if (self->verdicts[i] != DROPPED) {
            size += self->starts[i + 1] - self->starts[i] + 21;
            lines++;
        }
    kept = PyBytes_FromStringAndSize(NULL, size);
    if (!kept)
        goto done;
    char *out = PyBytes_AS_STRING(kept);
    for (Py_ssize_t i = 0; i < self->line_count; i++)
        if (self->verdicts[i] != DROPPED) {
            size_t length = self->starts[i + 1] - self->starts[i];
            out = write_number(out, self->first_number + i);
            memcpy(out, block + self->starts[i], length);
            out += length;
            self->kept_bytes += length;
        }
    self->kept_lines += lines;
    for (uint32_t i = 0; i < self->touched_count; i++) {
        Rank *record = self->ranks[self->touched[i]];
        uint32_t index = record->last_index;
        size_t length = self->starts[index + 1] - self->starts[index] - 1;
        record->touched = 0;
        record->last_number = self->first_number + index;
        record->last_length = length < MAX_LAST_BYTES ? (uint32_t)length : MAX_LAST_BYTES;
        memcpy(record->last_line, block + self->starts[index], record->last_length);
    }
    self->touched_count = 0;
    self->run_count = 0;
    self->line_count = 0;
    release_block(self);
    _PyBytes_Resize(&kept, out - PyBytes_AS_STRING(kept));
done:
    PyBuffer_Release(&view);
    return kept;
}

static void sifter_dealloc(Sifter *self) {
    release_block(self);
    if (self->buckets)
        forget_shapes(self);
    for (uint32_t slot = 0; slot < self->rank_room; slot++)
        if (self->ranks[slot]) {
            PyMem_Free(self->ranks[slot]->series);
            PyMem_Free(self->ranks[slot]->points);
            PyMem_Free(self->ranks[slot]);
        }
    PyMem_Free(self->buckets);
    PyMem_Free(self->seen);
    PyMem_Free(self->dropped);
    PyMem_Free(self->ranks);
    PyMem_Free(self->touched);
    PyMem_Free(self->runs);
    PyMem_Free(self->newest_runs);
    PyMem_Free(self->starts);
    PyMem_Free(self->verdicts);
    PyMem_Free(self->scratch);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *sifter_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords)) {
    unsigned int rule_count;
    const char *seed;
    Py_ssize_t seed_length;
    if (!PyArg_ParseTuple(arguments, "Iy#", &rule_count, &seed, &seed_length))
        return NULL;
    Sifter *self = (Sifter *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    if (seed_length != (Py_ssize_t)sizeof self->seed || rule_count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the seed is 32 bytes");
        Py_DECREF(self);
        return NULL;
    }
    memcpy(self->seed, seed, sizeof self->seed);
    self->rule_count = rule_count;
    self->bucket_count = 16384;
    self->buckets = PyMem_Calloc(self->bucket_count, sizeof *self->buckets);
    self->seen = PyMem_Calloc(SEEN_SLOTS, sizeof *self->seen);
    self->dropped = PyMem_Calloc(rule_count + 1, sizeof *self->dropped);
    self->newest_runs = PyMem_Calloc(RUN_SLOTS, sizeof *self->newest_runs);
    self->scratch = PyMem_Malloc(MAX_SHAPE_BYTES + 2 * LANE);
    if (!self->buckets || !self->seen || !self->dropped || !self->newest_runs || !self->scratch) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static PyMethodDef sifter_methods[] = {
    {"open_block", (PyCFunction)open_block, METH_VARARGS, "open_block(block, first_number)"},
    {"sift", (PyCFunction)sift, METH_NOARGS, "sift() -> (indexes, lines, repeated, more)"},
    {"learn", (PyCFunction)learn, METH_VARARGS, "learn(line, rule, guards, rank, second, values, note)"},
    {"noted", (PyCFunction)noted, METH_NOARGS, "noted() -> [(note, count, first index, last index, first line)]"},
    {"settle", (PyCFunction)settle, METH_VARARGS, "settle(indexes, rules, ranks)"},
    {"measure", (PyCFunction)measure, METH_VARARGS, "measure(index, rank, time, values)"},
    {"close_block", (PyCFunction)close_block, METH_O, "close_block(block) -> kept lines with their numbers"},
    {"report", (PyCFunction)report, METH_NOARGS, "report() -> (kept lines, kept bytes, dropped by rule, ranks)"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef sifter_members[] = {
    {"lines", T_LONGLONG, offsetof(Sifter, lines), READONLY, "lines of all blocks so far"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject SifterType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "rules._sifter.Sifter",
    .tp_basicsize = sizeof(Sifter),
    .tp_dealloc = (destructor)sifter_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = sifter_methods,
    .tp_members = sifter_members,
    .tp_new = sifter_new,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_sifter", NULL, -1, NULL, NULL, NULL, NULL, NULL};

static int add_type(PyObject *made, const char *name, PyTypeObject *type) {
    return PyType_Ready(type) < 0 ? -1 : PyModule_AddObjectRef(made, name, (PyObject *)type);
}

PyMODINIT_FUNC PyInit__sifter(void) {
    PyObject *made = PyModule_Create(&module);
    if (made && (add_type(made, "Sifter", &SifterType) || add_type(made, "Verdicts", &VerdictsType)))
        Py_CLEAR(made);
    return made;
}
