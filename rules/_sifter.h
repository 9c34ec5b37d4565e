/* Limits and types of the sifter; rules/_sifter.c says what it is. */
#pragma once
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
#define MAX_REPEATED 32
#define POINTS_IN_ALL 8192
#define MIN_POINTS 2
#define MAX_POINTS 128
#define MAX_RANK_RECORDS 65536
#define LANE 32
#define RUN_SLOTS 1024
#define RUN_STRIDE 31
#define NO_NOTE -1

enum { DROPPED = 0, KEPT = 1, UNKNOWN = 2 };
enum { RULE_KEEP = -1, RULE_ASK = -2 };

typedef struct { uint32_t start, end; } Span;
typedef struct { uint32_t series; Span span; } Value;

typedef struct Shape {
    struct Shape *next;
    uint64_t hash;
    uint32_t length, guard_count, value_count;
    int32_t rule, note;
    uint32_t note_gap;
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

typedef struct { int32_t note; int64_t rank; uint32_t count, first, last, gap; } Run;

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
    Run *runs;
    uint32_t run_count, run_room;
    uint32_t *newest_runs;
    uint32_t *starts;
    uint8_t *verdicts;
    Py_ssize_t line_count, line_room;
    int64_t first_number;
    Py_buffer view;
    const uint8_t *next, *end;
    uint64_t kept_lines, kept_bytes;
    long long lines;
    uint8_t *scratch;
} Sifter;
