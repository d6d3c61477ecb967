/* A stand-in for libnvidia-ml.so.1 beside that of libcuda.so.1 (cuda_driver.c), with the same devices.
 *
 * In the folder of the library, written by a test or a model:
 *
 *   devices            how many devices there are (1 without the file)
 *   gpu-memory         a line `PID BYTES` for each process that uses device 0
 *   used               bytes in use on each device (0 without the file); each has 1 GiB
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned pid; unsigned long long used; unsigned instance, part; } process_t;

static FILE *opened(const char *name) {
    char path[4096];
    Dl_info info;
    dladdr((void *)opened, &info);
    if (!realpath(info.dli_fname, path)) return NULL;
    strcpy(strrchr(path, '/') + 1, name);
    return fopen(path, "r");
}

static long setting(const char *name, long otherwise) {
    FILE *file = opened(name);
    if (!file) return otherwise;
    if (fscanf(file, "%ld", &otherwise) != 1) otherwise = 0;
    fclose(file);
    return otherwise;
}

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = (unsigned)setting("devices", 1), 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { return *handle = (void *)(long)(index + 1), 0; }
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size) {
    snprintf(uuid, size, "GPU-dadadada-dada-dada-dada-dadadadada%02x", (unsigned)((long)handle - 1));
    return 0;
}
int nvmlDeviceGetName(void *handle, char *name, unsigned size) { return snprintf(name, size, "Stand-in %ld", (long)handle - 1), 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) { return snprintf(version, size, "999.1"), 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return *version = 13000, 0; }
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *rates) { return (void)handle, (void)rates, 3; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *value) { return (void)handle, (void)value, 3; }
int nvmlDeviceGetPowerManagementLimit(void *handle, unsigned *value) { return (void)handle, (void)value, 3; }
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *value) { return (void)handle, (void)value, 3; }
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *sizes) {
    (void)handle;
    sizes[0] = 1ULL << 30;
    sizes[2] = (unsigned long long)setting("used", 0);
    sizes[1] = sizes[0] - sizes[2];
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_t *found) {
    unsigned most = *count;
    *count = 0;
    FILE *file = (long)handle == 1 ? opened("gpu-memory") : NULL;
    if (!file) return 0;
    while (*count < most && fscanf(file, "%u %llu", &found[*count].pid, &found[*count].used) == 2) ++*count;
    fclose(file);
    return 0;
}
