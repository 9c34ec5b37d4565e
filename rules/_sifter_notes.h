/* Runs of noted lines in one block. Included by rules/_sifter.c only; rules/sifter.py states what they are. */
#pragma once
#include "_sifter.h"

static int take_note(Sifter *self, const Shape *shape, int64_t rank, uint32_t index) {
    uint32_t *newest = &self->newest_runs[((uint32_t)shape->note * RUN_STRIDE + (uint32_t)(rank + 1)) % RUN_SLOTS];
    /* What an earlier block left there may name a run of this one: it is taken only if it is of this note and rank. */
    Run *run = *newest < self->run_count ? &self->runs[*newest] : NULL;
    if (run && run->note == shape->note && run->rank == rank && index > run->last && index - run->last <= shape->note_gap) {
        run->count++;
        run->last = index;
        return 0;
    }
    if (self->run_count == self->run_room) {
        uint32_t room = self->run_room ? self->run_room * 2 : 64;
        Run *grown = PyMem_Realloc(self->runs, room * sizeof *grown);
        if (!grown) {
            PyErr_NoMemory();
            return -1;
        }
        self->runs = grown;
        self->run_room = room;
    }
    *newest = self->run_count;
    self->runs[self->run_count++] = (Run){shape->note, rank, 1, index, index, shape->note_gap};
    return 0;
}

static PyObject *noted(Sifter *self, PyObject *Py_UNUSED(ignored)) {
    const char *block = self->view.buf;
    PyObject *report = PyList_New(self->run_count);
    for (uint32_t i = 0; report && i < self->run_count; i++) {
        const Run *run = &self->runs[i];
        uint32_t start = self->starts[run->first];
        Py_ssize_t length = run->rank < 0 && run->gap ? 0 : self->starts[run->first + 1] - start - 1;
        PyObject *entry = Py_BuildValue("(iIIIy#)", run->note, run->count, run->first, run->last, block + start, length);
        if (!entry)
            Py_CLEAR(report);
        else
            PyList_SET_ITEM(report, i, entry);
    }
    return report;
}
