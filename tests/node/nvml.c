/* The driver's library as NVML's API reference declares what the agent calls: one GPU, its state as the file NVML_STATE says:
 * "uncorrectable pending xid lost", four numbers. Built by tests/node/test_gpus.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, TIMEOUT = 10, GPU_IS_LOST = 15 };
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { void *device; unsigned long long type, data; unsigned gpu, compute; } Event;

static unsigned long long state[4], told;

static void look(void) {
    FILE *file = fopen(getenv("NVML_STATE"), "r");
    if (!file) return;
    if (fscanf(file, "%llu %llu %llu %llu", &state[0], &state[1], &state[2], &state[3]) != 4) state[3] = 0;
    fclose(file);
}

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = state; return SUCCESS; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) { strcpy(text, "GPU-8c3e"); return SUCCESS; }
int nvmlDeviceGetSerial(void *handle, char *text, unsigned size) { strcpy(text, "1652922001234"); return SUCCESS; }
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) { strcpy(pci->bus_id, "00000000:3B:00.0"); return SUCCESS; }
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) {
    look();
    *celsius = 41;
    return state[3] ? GPU_IS_LOST : SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(void *handle, int kind, int counter, unsigned long long *count) {
    *count = state[0];
    return SUCCESS;
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
    *correctable = *uncorrectable = *failed = 0;
    *pending = state[1];
    return SUCCESS;
}
int nvmlEventSetCreate(void **set) { *set = &told; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) { return SUCCESS; }
int nvmlEventSetWait_v2(void *set, Event *event, unsigned milliseconds) {
    look();
    if (told == state[2]) return TIMEOUT;
    told = state[2];
    event->device = state;
    event->type = 8;
    event->data = told;
    return SUCCESS;
}
