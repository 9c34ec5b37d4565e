/* What is kept of each rank: counts, values, points. Included by rules/_sifter.c only. */
#pragma once
#include "_sifter.h"
#include "_sifter_notes.h"

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
    if (shape->note != NO_NOTE && take_note(self, shape, rank, index))
        return -1;
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
