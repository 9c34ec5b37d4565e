/* Verdicts: what the matches of a scan over some lines say of each. Included by rules/_sifter.c only; rules/scan_verdicts.py states it. */
#pragma once
#include "_sifter.h"

/* Where a pattern was last noted: the place of the line, and the first of its ends there. */
typedef struct {
    Py_ssize_t place, end;
} Newest;

typedef struct {
    PyObject_HEAD
    int32_t *standings;
    Newest *newest;
    Py_ssize_t pattern_count;
    int32_t *best;
    Py_ssize_t *ends;
    Py_ssize_t line_count, line_room, place;
    int32_t routine_end;
    int conditions;
    PyObject *observed;
} Verdicts;

static PyObject *verdicts_open(Verdicts *self, PyObject *lines) {
    if (!PyList_Check(lines)) {
        PyErr_SetString(PyExc_TypeError, "a list of lines");
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(lines);
    if (count > self->line_room) {
        int32_t *best = PyMem_Realloc(self->best, count * sizeof *best);
        if (best)
            self->best = best;
        Py_ssize_t *ends = best ? PyMem_Realloc(self->ends, count * sizeof *ends) : NULL;
        if (!ends)
            return PyErr_NoMemory();
        self->ends = ends;
        self->line_room = count;
    }
    PyObject *observed = PyList_New(0);
    if (!observed)
        return NULL;
    Py_XSETREF(self->observed, observed);
    self->line_count = 0;
    self->place = 0;
    for (Py_ssize_t i = 0; i < self->pattern_count; i++)
        self->newest[i].place = -1;
    Py_ssize_t end = -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t length = PyObject_Length(PyList_GET_ITEM(lines, i));
        if (length < 0)
            return NULL;
        end += length + 1;
        self->ends[i] = end;
        self->best[i] = INT32_MAX;
    }
    self->line_count = count;
    Py_RETURN_NONE;
}

/* Called for every match: (pattern, start, end, flags, context). Ends rise, but for now and then. */
static PyObject *verdicts_found(Verdicts *self, PyObject *const *arguments, Py_ssize_t count) {
    Py_ssize_t pattern = count == 5 ? PyLong_AsSsize_t(arguments[0]) : -1, end = pattern < 0 ? -1 : PyLong_AsSsize_t(arguments[2]);
    if (PyErr_Occurred())
        return NULL;
    if (pattern < 0 || pattern >= self->pattern_count || !self->line_count || end < 0 || end > self->ends[self->line_count - 1]) {
        PyErr_SetString(PyExc_ValueError, "no such pattern or line");
        return NULL;
    }
    Py_ssize_t place = self->place;
    while (place && end <= self->ends[place - 1])
        place--;
    while (end > self->ends[place])
        place++;
    self->place = place;
    int32_t standing = self->standings[pattern];
    if (standing < self->best[place])
        self->best[place] = standing;
    Newest *newest = &self->newest[pattern];
    int is_new = newest->place != place || end < newest->end;
    if (is_new && (standing < 0 || (self->conditions && standing >= self->routine_end))) {
        *newest = (Newest){place, end};
        PyObject *seen = Py_BuildValue("(nnn)", place, end, pattern);
        if (!seen || PyList_Append(self->observed, seen)) {
            Py_XDECREF(seen);
            return NULL;
        }
        Py_DECREF(seen);
    }
    Py_RETURN_NONE;
}

static PyObject *verdicts_close(Verdicts *self, PyObject *Py_UNUSED(ignored)) {
    PyObject *best = PyList_New(self->line_count);
    for (Py_ssize_t i = 0; best && i < self->line_count; i++) {
        int32_t standing = self->best[i];
        PyObject *entry = PyLong_FromLong(standing >= 0 && standing < self->routine_end ? standing : RULE_KEEP);
        if (!entry)
            Py_CLEAR(best);
        else
            PyList_SET_ITEM(best, i, entry);
    }
    PyObject *observed = self->observed;
    self->observed = NULL;
    self->line_count = 0;
    if (best && observed)
        return Py_BuildValue("(NN)", best, observed);
    Py_XDECREF(best);
    Py_XDECREF(observed);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "no lines were named");
    return NULL;
}

static void verdicts_dealloc(Verdicts *self) {
    PyMem_Free(self->standings);
    PyMem_Free(self->newest);
    PyMem_Free(self->best);
    PyMem_Free(self->ends);
    Py_XDECREF(self->observed);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *verdicts_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords)) {
    PyObject *standings;
    int routine_end, conditions;
    if (!PyArg_ParseTuple(arguments, "O!ip", &PyList_Type, &standings, &routine_end, &conditions))
        return NULL;
    Verdicts *self = (Verdicts *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->pattern_count = PyList_GET_SIZE(standings);
    self->routine_end = routine_end;
    self->conditions = conditions;
    self->standings = PyMem_Calloc(self->pattern_count + 1, sizeof *self->standings);
    self->newest = PyMem_Calloc(self->pattern_count + 1, sizeof *self->newest);
    if (!self->standings || !self->newest) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < self->pattern_count; i++) {
        long standing = PyLong_AsLong(PyList_GET_ITEM(standings, i));
        if (PyErr_Occurred()) {
            Py_DECREF(self);
            return NULL;
        }
        self->standings[i] = (int32_t)standing;
    }
    return (PyObject *)self;
}

static PyMethodDef verdicts_methods[] = {
    {"open", (PyCFunction)verdicts_open, METH_O, "open(lines)"},
    {"found", (PyCFunction)(void (*)(void))verdicts_found, METH_FASTCALL, "found(pattern, start, end, flags, context)"},
    {"close", (PyCFunction)verdicts_close, METH_NOARGS, "close() -> (standing by line, observed)"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject VerdictsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "rules._sifter.Verdicts",
    .tp_basicsize = sizeof(Verdicts),
    .tp_dealloc = (destructor)verdicts_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = verdicts_methods,
    .tp_new = verdicts_new,
};
