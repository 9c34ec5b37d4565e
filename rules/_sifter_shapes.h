/* The table of shapes: masking, finding, learning. Included by rules/_sifter.c only. */
#pragma once
#include "_sifter.h"

static inline uint64_t mix(uint64_t a, uint64_t b) {
    __uint128_t product = (__uint128_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

/* Whole lanes of `line` with digits made '0'. */
FOR_EACH_PROCESSOR
static void mask_lanes(uint8_t *restrict out, const uint8_t *restrict line, size_t length) {
    for (size_t i = 0; i < length; i++) {
        uint8_t byte = line[i];
        out[i] = (uint8_t)(byte - '0') < 10 ? '0' : byte;
    }
}

static inline uint64_t word(const uint8_t *bytes) {
    uint64_t value;
    memcpy(&value, bytes, 8);
    return value;
}

/* Masks `line` into self->scratch (zero-padded to a whole lane) and returns its hash. */
static inline uint64_t shape_of(Sifter *self, const uint8_t *line, size_t length) {
    uint8_t *out = self->scratch;
    mask_lanes(out, line, length);
    memset(out + length, 0, LANE);
    uint64_t hash = self->seed[0] ^ length;
    for (size_t i = 0; i < length; i += LANE)
        hash = mix(word(out + i) ^ hash, word(out + i + 8) ^ self->seed[1])
             ^ mix(word(out + i + 16) ^ self->seed[2], word(out + i + 24) ^ hash);
    return hash ^ (hash >> 32);
}

static int guards_hold(const Shape *shape, const uint8_t *line) {
    for (uint32_t i = 0; i < shape->guard_count; i++) {
        Span guard = shape->guards[i];
        if (memcmp(line + guard.start, shape->raw + guard.start, guard.end - guard.start))
            return 0;
    }
    return 1;
}

static Shape *find_shape(Sifter *self, uint64_t hash, const uint8_t *line, size_t length) {
    for (Shape *shape = self->buckets[hash & (self->bucket_count - 1)]; shape; shape = shape->next)
        if (shape->hash == hash && shape->length == length && !memcmp(shape->masked, self->scratch, length) && guards_hold(shape, line))
            return shape;
    return NULL;
}

static int read_span(PyObject *pair, size_t length, Span *span) {
    unsigned int start, end;
    if (!PyArg_ParseTuple(pair, "II", &start, &end))
        return -1;
    if (start > end || end > length) {
        PyErr_SetString(PyExc_ValueError, "a span lies outside of its line");
        return -1;
    }
    *span = (Span){start, end};
    return 0;
}

static void free_shape(Shape *shape) {
    if (shape) {
        PyMem_Free(shape->guards);
        PyMem_Free(shape->values);
        PyMem_Free(shape->masked);
        PyMem_Free(shape->raw);
        PyMem_Free(shape);
    }
}

static void forget_shapes(Sifter *self) {
    for (uint32_t i = 0; i < self->bucket_count; i++)
        for (Shape *shape = self->buckets[i], *next; shape; shape = next) {
            next = shape->next;
            free_shape(shape);
        }
    memset(self->buckets, 0, self->bucket_count * sizeof *self->buckets);
    self->shape_count = 0;
    self->shape_memory = 0;
}

static PyObject *learn(Sifter *self, PyObject *arguments) {
    Py_buffer line;
    int rule;
    PyObject *guards, *rank, *second, *values, *note;
    if (!PyArg_ParseTuple(arguments, "y*iO!OOO!O", &line, &rule, &PyTuple_Type, &guards, &rank, &second, &PyTuple_Type, &values, &note))
        return NULL;
    Shape *shape = NULL;
    if (line.len > MAX_SHAPE_BYTES || rule < RULE_ASK || rule >= (int)self->rule_count) {
        PyErr_SetString(PyExc_ValueError, "too long a line, or no such rule");
        goto failed;
    }
    if (self->shape_count >= MAX_SHAPES || self->shape_memory > MAX_SHAPE_MEMORY)
        forget_shapes(self);
    size_t length = line.len;
    shape = PyMem_Calloc(1, sizeof *shape);
    if (!shape)
        goto short_of_memory;
    shape->length = (uint32_t)length;
    shape->rule = rule;
    shape->note = NO_NOTE;
    shape->guard_count = (uint32_t)PyTuple_GET_SIZE(guards);
    shape->value_count = (uint32_t)PyTuple_GET_SIZE(values);
    shape->guards = PyMem_Calloc(shape->guard_count + 1, sizeof *shape->guards);
    shape->values = PyMem_Calloc(shape->value_count + 1, sizeof *shape->values);
    shape->masked = PyMem_Malloc(length + 1);
    shape->raw = PyMem_Malloc(length + 1);
    if (!shape->guards || !shape->values || !shape->masked || !shape->raw)
        goto short_of_memory;
    for (uint32_t i = 0; i < shape->guard_count; i++)
        if (read_span(PyTuple_GET_ITEM(guards, i), length, &shape->guards[i]))
            goto failed;
    for (uint32_t i = 0; i < shape->value_count; i++) {
        unsigned int start, end;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(values, i), "III", &shape->values[i].series, &start, &end))
            goto failed;
        shape->values[i].span = (Span){start, end};
        if (start > end || end > length || shape->values[i].series >= MAX_SERIES) {
            PyErr_SetString(PyExc_ValueError, "a value lies outside of its line, or its series is unknown");
            goto failed;
        }
    }
    if ((rank != Py_None && read_span(rank, length, &shape->rank)) || (second != Py_None && read_span(second, length, &shape->second)))
        goto failed;
    if (note != Py_None && !PyArg_ParseTuple(note, "iI", &shape->note, &shape->note_gap))
        goto failed;
    shape->hash = shape_of(self, line.buf, length);
    memcpy(shape->masked, self->scratch, length);
    memcpy(shape->raw, line.buf, length);
    Shape **bucket = &self->buckets[shape->hash & (self->bucket_count - 1)];
    shape->next = *bucket;
    *bucket = shape;
    self->shape_count++;
    self->shape_memory += 2 * length + sizeof *shape;
    PyBuffer_Release(&line);
    Py_RETURN_NONE;
short_of_memory:
    PyErr_NoMemory();
failed:
    free_shape(shape);
    PyBuffer_Release(&line);
    return NULL;
}
