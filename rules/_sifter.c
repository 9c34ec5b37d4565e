/* Sifter: decide most lines of a log by their shape alone.
 *
 * A shape is a line with every digit made '0'. The caller teaches the sifter shapes whose verdict cannot depend on their digits (or
 * only on those at the guarded places) and gets back the lines of all other shapes. rules/sifter.py has the same in Python, states
 * the contract, and is what tests hold this to.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SHAPE_BYTES 8192
#define MAX_SHAPES 65536
#define MAX_SHAPE_MEMORY (64u << 20)
#define MAX_SERIES 16
#define MAX_RANK 1048576
#define MAX_LAST_BYTES 512
#define TIME_BYTES 40
#define SEEN_SLOTS 65536
#define POINTS_IN_ALL 8192
#define MIN_POINTS 2
#define MAX_POINTS 128
#define MAX_RANK_RECORDS 65536
#define LANE 32

enum { DROPPED = 0, KEPT = 1, UNKNOWN = 2 };
enum { RULE_KEEP = -1, RULE_ASK = -2 };

typedef struct { uint32_t start, end; } Span;
typedef struct { uint32_t series; Span span; } Value;

typedef struct Shape {
    struct Shape *next;
    uint64_t hash;
    uint32_t length, guard_count, value_count;
    int32_t rule;
    Span rank, second;
    Span *guards;
    Value *values;
    uint8_t *masked, *raw;
} Shape;

typedef struct { uint64_t count; double last, least, most; int64_t last_number; } Series;

typedef struct { int64_t number; uint32_t present; uint8_t time_length; char time[TIME_BYTES]; double values[MAX_SERIES]; } Point;

typedef struct {
    uint64_t lines, measured;
    int64_t last_number;
    uint32_t stride, point_count, point_room, last_length, touched;
    uint32_t last_index;
    char last_second[8];
    Series *series;
    Point *points;
    uint8_t last_line[MAX_LAST_BYTES];
} Rank;

typedef struct {
    PyObject_HEAD
    Shape **buckets;
    uint32_t bucket_count, shape_count;
    size_t shape_memory;
    uint64_t seed[4];
    uint64_t *seen;
    uint64_t *dropped;
    uint32_t rule_count;
    Rank **ranks;
    uint32_t rank_room, rank_count, point_total;
    uint32_t *touched;
    uint32_t touched_count;
    uint32_t *starts;
    uint8_t *verdicts;
    Py_ssize_t line_count, line_room;
    int64_t first_number;
    const char *block;
    Py_ssize_t block_length;
    uint64_t kept_lines, kept_bytes;
    long long lines;
    uint8_t *scratch;
} Sifter;

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

static int64_t read_rank(const uint8_t *digits, size_t length) {
    int64_t rank = 0;
    if (!length || length > 7)
        return -1;
    for (size_t i = 0; i < length; i++) {
        if ((uint8_t)(digits[i] - '0') > 9)
            return -1;
        rank = rank * 10 + (digits[i] - '0');
    }
    return rank < MAX_RANK ? rank : -1;
}

/* Decimal text to the nearest double; NaN where it is no plain number. */
static double read_value(const uint8_t *text, size_t length) {
    static const double POWERS[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    uint64_t mantissa = 0;
    int digits = 0, scale = 0, exponent = 0, negative = 0, point = 0;
    size_t i = 0;
    if (i < length && (text[i] == '-' || text[i] == '+'))
        negative = text[i++] == '-';
    for (; i < length; i++) {
        if ((uint8_t)(text[i] - '0') < 10) {
            mantissa = mantissa * 10 + (text[i] - '0');
            digits++;
            scale -= point;
            if (digits > 18)
                return NAN;
        } else if (text[i] == '.' && !point) {
            point = 1;
        } else {
            break;
        }
    }
    if (!digits)
        return NAN;
    if (i < length && (text[i] == 'e' || text[i] == 'E')) {
        int minus = 0, exponent_digits = 0;
        i++;
        if (i < length && (text[i] == '-' || text[i] == '+'))
            minus = text[i++] == '-';
        for (; i < length && (uint8_t)(text[i] - '0') < 10 && exponent_digits < 4; i++, exponent_digits++)
            exponent = exponent * 10 + (text[i] - '0');
        if (!exponent_digits)
            return NAN;
        scale += minus ? -exponent : exponent;
    }
    if (i != length)
        return NAN;
    double value;
    if (mantissa < (1ull << 53) && scale >= -22 && scale <= 22) {
        value = scale < 0 ? (double)mantissa / POWERS[-scale] : (double)mantissa * POWERS[scale];
    } else {
        char copy[64];
        if (length >= sizeof copy)
            return NAN;
        memcpy(copy, text, length);
        copy[length] = 0;
        value = PyOS_string_to_double(copy, NULL, NULL);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            return NAN;
        }
        return value;
    }
    return negative ? -value : value;
}

/* The record of `rank` (-1: lines that name none, or one rank too many). NULL with an exception set where memory is short. */
static Rank *rank_record(Sifter *self, int64_t *rank) {
    uint32_t slot = (uint32_t)(*rank + 1);
    if (self->rank_count >= MAX_RANK_RECORDS && (slot >= self->rank_room || !self->ranks[slot])) {
        *rank = -1;
        slot = 0;
    }
    if (slot >= self->rank_room) {
        uint32_t room = self->rank_room ? self->rank_room : 64;
        while (room <= slot)
            room *= 2;
        Rank **grown = PyMem_Realloc(self->ranks, room * sizeof *grown);
        uint32_t *touched = grown ? PyMem_Realloc(self->touched, room * sizeof *touched) : NULL;
        if (grown)
            self->ranks = grown;
        if (!touched) {
            PyErr_NoMemory();
            return NULL;
        }
        self->touched = touched;
        memset(grown + self->rank_room, 0, (room - self->rank_room) * sizeof *grown);
        self->rank_room = room;
    }
    if (!self->ranks[slot]) {
        Rank *record = PyMem_Calloc(1, sizeof *record);
        if (!record) {
            PyErr_NoMemory();
            return NULL;
        }
        record->stride = 1;
        record->last_number = -1;
        self->ranks[slot] = record;
        self->rank_count++;
    }
    return self->ranks[slot];
}

static inline void touch(Sifter *self, Rank *record, int64_t rank, uint32_t index) {
    record->lines++;
    if (!record->touched) {
        record->touched = 1;
        record->last_index = index;
        self->touched[self->touched_count++] = (uint32_t)(rank + 1);
    } else if (index > record->last_index) {
        record->last_index = index;
    }
}

static uint32_t point_limit(const Sifter *self) {
    uint32_t limit = POINTS_IN_ALL / (self->rank_count ? self->rank_count : 1);
    return limit < MIN_POINTS ? MIN_POINTS : limit > MAX_POINTS ? MAX_POINTS : limit;
}

/* A fresh point for `record`, or NULL where this second or this stride has one, or memory is short (then none is kept). */
static Point *new_point(Sifter *self, Rank *record, int64_t number, const char *time, size_t time_length) {
    if (record->measured++ % record->stride)
        return NULL;
    if (time_length >= 8) {
        const char *second = time + time_length - 8;
        if (!memcmp(second, record->last_second, 8))
            return NULL;
        memcpy(record->last_second, second, 8);
    }
    if (record->point_count >= point_limit(self)) {
        uint32_t kept = 0;
        for (uint32_t i = 0; i < record->point_count; i += 2)
            record->points[kept++] = record->points[i];
        self->point_total -= record->point_count - kept;
        record->point_count = kept;
        record->stride *= 2;
    }
    if (self->point_total >= 2 * POINTS_IN_ALL)
        return NULL;
    if (record->point_count == record->point_room) {
        uint32_t room = record->point_room ? record->point_room * 2 : 8;
        Point *grown = PyMem_Realloc(record->points, room * sizeof *grown);
        if (!grown)
            return NULL;
        record->points = grown;
        record->point_room = room;
    }
    Point *point = &record->points[record->point_count++];
    self->point_total++;
    point->number = number;
    point->present = 0;
    if (time_length > TIME_BYTES) {
        time += time_length - TIME_BYTES;
        time_length = TIME_BYTES;
    }
    point->time_length = (uint8_t)time_length;
    memcpy(point->time, time, time_length);
    return point;
}

static int add_value(Rank *record, Point *point, uint32_t series, double value, int64_t number) {
    if (isnan(value))
        return 0;
    if (!record->series && !(record->series = PyMem_Calloc(MAX_SERIES, sizeof *record->series))) {
        PyErr_NoMemory();
        return -1;
    }
    Series *line = &record->series[series];
    if (!line->count || number > line->last_number) {
        line->last = value;
        line->last_number = number;
    }
    line->least = line->count && line->least < value ? line->least : value;
    line->most = line->count && line->most > value ? line->most : value;
    line->count++;
    if (point) {
        point->present |= 1u << series;
        point->values[series] = value;
    }
    return 0;
}

static int apply_shape(Sifter *self, const Shape *shape, const uint8_t *line, uint32_t index) {
    int64_t rank = shape->rank.end ? read_rank(line + shape->rank.start, shape->rank.end - shape->rank.start) : -1;
    Rank *record = rank_record(self, &rank);
    if (!record)
        return -1;
    touch(self, record, rank, index);
    if (!shape->value_count)
        return 0;
    int64_t number = self->first_number + index;
    size_t from = shape->second.end > TIME_BYTES ? shape->second.end - TIME_BYTES : 0;
    Point *point = new_point(self, record, number, (const char *)line + from, shape->second.end - from);
    for (uint32_t i = 0; i < shape->value_count; i++) {
        Value value = shape->values[i];
        if (add_value(record, point, value.series, read_value(line + value.span.start, value.span.end - value.span.start), number))
            return -1;
    }
    return 0;
}

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

static PyObject *sift(Sifter *self, PyObject *arguments) {
    Py_buffer view;
    long long first_number;
    if (!PyArg_ParseTuple(arguments, "y*L", &view, &first_number))
        return NULL;
    PyObject *indexes = PyList_New(0), *lines = PyList_New(0), *repeated = PyList_New(0);
    const uint8_t *block = view.buf, *end = block + view.len;
    if (!indexes || !lines || !repeated)
        goto failed;
    if (view.len && (end[-1] != '\n' || view.len > UINT32_MAX)) {
        PyErr_SetString(PyExc_ValueError, "a block holds whole lines and is under 4 GiB");
        goto failed;
    }
    self->first_number = first_number;
    self->line_count = 0;
    self->block_length = view.len;
    self->touched_count = 0;
    for (const uint8_t *line = block; line < end;) {
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
    self->starts[self->line_count] = (uint32_t)view.len;
    self->lines += self->line_count;
    PyBuffer_Release(&view);
    return Py_BuildValue("(NNN)", indexes, lines, repeated);
failed:
    self->line_count = 0;
    Py_XDECREF(indexes);
    Py_XDECREF(lines);
    Py_XDECREF(repeated);
    PyBuffer_Release(&view);
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
    PyObject *guards, *rank, *second, *values;
    if (!PyArg_ParseTuple(arguments, "y*iO!OOO!", &line, &rule, &PyTuple_Type, &guards, &rank, &second, &PyTuple_Type, &values))
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
    /* The block as it stood in the source may have longer lines than the one that was sifted: their starts are found anew. */
    const char *line = block;
    for (Py_ssize_t i = 0; i < self->line_count && view.len != self->block_length; i++) {
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
    self->line_count = 0;
    _PyBytes_Resize(&kept, out - PyBytes_AS_STRING(kept));
done:
    PyBuffer_Release(&view);
    return kept;
}

static PyObject *series_report(const Rank *record) {
    PyObject *report = PyDict_New();
    for (uint32_t i = 0; report && record->series && i < MAX_SERIES; i++) {
        const Series *line = &record->series[i];
        if (!line->count)
            continue;
        PyObject *key = PyLong_FromUnsignedLong(i);
        PyObject *entry = Py_BuildValue("(KdddL)", line->count, line->last, line->least, line->most, (long long)line->last_number);
        if (!key || !entry || PyDict_SetItem(report, key, entry))
            Py_CLEAR(report);
        Py_XDECREF(key);
        Py_XDECREF(entry);
    }
    return report;
}

static PyObject *points_report(const Rank *record) {
    PyObject *report = PyList_New(record->point_count);
    for (uint32_t i = 0; report && i < record->point_count; i++) {
        const Point *point = &record->points[i];
        PyObject *values = PyDict_New();
        for (uint32_t series = 0; values && series < MAX_SERIES; series++) {
            if (!(point->present >> series & 1))
                continue;
            PyObject *key = PyLong_FromUnsignedLong(series), *value = PyFloat_FromDouble(point->values[series]);
            if (!key || !value || PyDict_SetItem(values, key, value))
                Py_CLEAR(values);
            Py_XDECREF(key);
            Py_XDECREF(value);
        }
        PyObject *entry = values ? Py_BuildValue("(Ly#N)", (long long)point->number, point->time, (Py_ssize_t)point->time_length, values) : NULL;
        if (!entry)
            Py_CLEAR(report);
        else
            PyList_SET_ITEM(report, i, entry);
    }
    return report;
}

static PyObject *report(Sifter *self, PyObject *Py_UNUSED(ignored)) {
    PyObject *dropped = PyList_New(self->rule_count), *ranks = PyDict_New();
    if (!dropped || !ranks)
        goto failed;
    for (uint32_t i = 0; i < self->rule_count; i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(self->dropped[i]);
        if (!count)
            goto failed;
        PyList_SET_ITEM(dropped, i, count);
    }
    for (uint32_t slot = 0; slot < self->rank_room; slot++) {
        const Rank *record = self->ranks[slot];
        if (!record)
            continue;
        PyObject *series = series_report(record), *points = points_report(record);
        PyObject *key = PyLong_FromLong((long)slot - 1), *entry = NULL;
        if (series && points && key)
            entry = Py_BuildValue("(KLy#OO)", record->lines, (long long)record->last_number, record->last_line,
                                  (Py_ssize_t)record->last_length, series, points);
        int status = entry ? PyDict_SetItem(ranks, key, entry) : -1;
        Py_XDECREF(series);
        Py_XDECREF(points);
        Py_XDECREF(key);
        Py_XDECREF(entry);
        if (status)
            goto failed;
    }
    return Py_BuildValue("(KKNN)", self->kept_lines, self->kept_bytes, dropped, ranks);
failed:
    Py_XDECREF(dropped);
    Py_XDECREF(ranks);
    return NULL;
}

static void sifter_dealloc(Sifter *self) {
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
    self->scratch = PyMem_Malloc(MAX_SHAPE_BYTES + 2 * LANE);
    if (!self->buckets || !self->seen || !self->dropped || !self->scratch) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static PyMethodDef sifter_methods[] = {
    {"sift", (PyCFunction)sift, METH_VARARGS, "sift(block, first_number) -> (indexes, lines, repeated)"},
    {"learn", (PyCFunction)learn, METH_VARARGS, "learn(line, rule, guards, rank, second, values)"},
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

PyMODINIT_FUNC PyInit__sifter(void) {
    PyObject *made = PyType_Ready(&SifterType) < 0 ? NULL : PyModule_Create(&module);
    if (made && PyModule_AddObjectRef(made, "Sifter", (PyObject *)&SifterType)) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
