/* A stand-in for libcuda.so.1: device memory is a file that processes share, so tensors can travel between guests.
 *
 * The CPU cannot touch the memory: it is mapped without access, and copies go through the file. So code that reads a
 * device pointer crashes here as it does with a real device. Work on streams is deferred until something waits for it,
 * so code that forgets to wait reads old values every time, not now and then.
 *
 * All state that a test looks at is in the folder of the library:
 *
 *   memory-PID-N            one allocation; its bytes
 *   opened-PID-OWNER-N      process PID has opened allocation N of process OWNER
 *   pinned-PID-ADDRESS      process PID has registered memory at ADDRESS
 *   context-PID-DEVICE      process PID has a context on DEVICE
 *   calls                   a line `PID FUNCTION BYTES` for each call that succeeded
 *   fail-FUNCTION           written by a test: every call of FUNCTION fails with the code in the file
 *   once-FUNCTION           the same for one call, which removes the file
 *   devices                 written by a test: how many devices there are (1 without the file)
 *   apart                   written by a test: device and device, "0 1", that have no direct access to each other
 *   limit                   written by a test: bytes of device memory of each process (1 GiB without the file)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef unsigned long long ptr_t;
typedef struct { char reserved[64]; } handle_t;

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, NOT_FOUND = 500, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, UNKNOWN = 999 };
enum { ORDINARY, VIRTUAL, IMPORTED };

typedef struct { uint64_t magic, owner, number, size, device; } named_t;

typedef struct allocation {
    struct allocation *next;
    char *base;
    size_t size;
    int device, kind, file, opens;
    unsigned long number, owner;
} allocation_t;

typedef struct operation {
    struct operation *next;
    ptr_t target;
    size_t size;
    int value;
    struct stream *other; /* wait for this stream up to operation `until` instead */
    unsigned long until;
} operation_t;

typedef struct stream {
    struct stream *next;
    int blocking;
    unsigned long queued, done;
    operation_t *first;
} stream_t;

typedef struct { stream_t *stream; unsigned long until; } event_t;
typedef struct pinned { struct pinned *next; char *start; size_t size; } pinned_t;

static const uint64_t MAGIC = 0x64616961e4c0da00ULL;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static allocation_t *allocations;
static stream_t legacy = {.blocking = 1}, per_thread = {.blocking = 1}, *streams;
static pinned_t *pinned_ranges;
static unsigned long numbers;
static size_t in_use;
static int initialized;
static int contexts[16]; /* one for each device; its address is the CUcontext */
static __thread int *stack[64];
static __thread int depth;

static const char *folder(void) {
    static char path[4096];
    if (!path[0]) {
        Dl_info info;
        dladdr((void *)folder, &info);
        if (!realpath(info.dli_fname, path)) abort();
        *strrchr(path, '/') = 0;
    }
    return path;
}

static void in_folder(char *path, const char *name) { snprintf(path, 4096, "%s/%s", folder(), name); }

static long setting(const char *name, long otherwise) {
    char path[4096];
    in_folder(path, name);
    FILE *file = fopen(path, "r");
    if (!file) return otherwise;
    if (fscanf(file, "%ld", &otherwise) != 1) otherwise = UNKNOWN;
    fclose(file);
    return otherwise;
}

static void mark(const char *name) {
    char path[4096];
    in_folder(path, name);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
}

static void unmark(const char *name) {
    char path[4096];
    in_folder(path, name);
    unlink(path);
}

/* The code that a test wants this call to fail with; 0 for none. */
static int failure(const char *name) {
    char each[128];
    snprintf(each, sizeof each, "fail-%s", name);
    int code = (int)setting(each, 0);
    if (code) return code;
    snprintf(each, sizeof each, "once-%s", name);
    code = (int)setting(each, 0);
    if (code) unmark(each);
    return code;
}

static void record(const char *name, size_t bytes) {
    char path[4096], line[128];
    in_folder(path, "calls");
    int file = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0666);
    int size = snprintf(line, sizeof line, "%d %s %zu\n", getpid(), name, bytes);
    if (write(file, line, size) != size) abort();
    close(file);
}

#define ENTER(name) \
    do { \
        int code_ = failure(name); \
        if (code_) return code_; \
        if (!initialized) return NOT_INITIALIZED; \
    } while (0)
#define ENTER_CONTEXT(name) \
    do { \
        ENTER(name); \
        if (!depth) return INVALID_CONTEXT; \
    } while (0)

static int device_count(void) {
    int count = (int)setting("devices", 1);
    return count > 16 ? 16 : count;
}

/* The device of the machine that a process knows by its ordinal; -1 if it sees no such device. */
static int machine_device(int ordinal) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = device_count();
    if (!visible) return ordinal >= 0 && ordinal < count ? ordinal : -1;
    for (int position = 0; *visible; position++) {
        char *end;
        long device = strtol(visible, &end, 10);
        if (!strncmp(visible, "GPU-", 4) || !strncmp(visible, "MIG-", 4)) { /* a UUID, which ends with the number */
            size_t length = strcspn(visible, ",");
            device = strtol(visible + length - 2, NULL, 16);
            end = (char *)visible + length;
        }
        if (end == visible || device < 0 || device >= count) return -1;
        if (position == ordinal) return (int)device;
        visible = *end == ',' ? end + 1 : end;
    }
    return -1;
}

static allocation_t *find(ptr_t address, size_t size) {
    for (allocation_t *each = allocations; each; each = each->next)
        if (address >= (ptr_t)each->base && address + size <= (ptr_t)each->base + each->size) return each;
    return NULL;
}

static int transfer(ptr_t address, void *host, size_t size, int to_device) {
    allocation_t *found = find(address, size);
    if (!found) return INVALID_VALUE;
    off_t offset = (off_t)(address - (ptr_t)found->base);
    for (size_t done = 0; done < size;) {
        ssize_t step = to_device ? pwrite(found->file, (char *)host + done, size - done, offset + (off_t)done)
                                 : pread(found->file, (char *)host + done, size - done, offset + (off_t)done);
        if (step <= 0) return INVALID_VALUE; /* also host memory that does not exist */
        done += (size_t)step;
    }
    return OK;
}

static void run(stream_t *stream, unsigned long until) {
    while (stream->first && stream->done < until) {
        operation_t *operation = stream->first;
        stream->first = operation->next;
        stream->done++;
        if (operation->other) {
            run(operation->other, operation->until);
        } else {
            char *bytes = malloc(operation->size);
            memset(bytes, operation->value, operation->size);
            transfer(operation->target, bytes, operation->size, 1);
            free(bytes);
        }
        free(operation);
    }
}

static void run_legacy(void) {
    run(&legacy, legacy.queued);
    run(&per_thread, per_thread.queued);
    for (stream_t *each = streams; each; each = each->next)
        if (each->blocking) run(each, each->queued);
}

static void run_all(void) {
    run_legacy();
    for (stream_t *each = streams; each; each = each->next) run(each, each->queued);
}

static stream_t *stream_of(void *given) {
    return (uintptr_t)given <= 1 ? &legacy : (uintptr_t)given == 2 ? &per_thread : given;
}

static void append(stream_t *stream, operation_t operation) {
    operation_t *added = malloc(sizeof *added), **end = &stream->first;
    *added = operation;
    while (*end) end = &(*end)->next;
    *end = added;
    stream->queued++;
}

static int allocate(ptr_t *address, size_t size, int kind) {
    char name[128], path[4096];
    if (!size) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    int code = OUT_OF_MEMORY;
    if (in_use + size <= (size_t)setting("limit", 1L << 30)) {
        allocation_t *added = calloc(1, sizeof *added);
        added->owner = (unsigned long)getpid();
        added->number = ++numbers;
        snprintf(name, sizeof name, "memory-%lu-%lu", added->owner, added->number);
        in_folder(path, name);
        added->file = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
        if (added->file < 0 || ftruncate(added->file, (off_t)size)) abort();
        added->base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (added->base == MAP_FAILED) abort();
        added->size = size;
        added->device = (int)(stack[depth - 1] - contexts);
        added->kind = kind;
        added->next = allocations;
        allocations = added;
        in_use += size;
        *address = (ptr_t)added->base;
        code = OK;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static void drop(allocation_t *dropped) {
    for (allocation_t **each = &allocations; *each; each = &(*each)->next)
        if (*each == dropped) {
            *each = dropped->next;
            break;
        }
    munmap(dropped->base, dropped->size);
    close(dropped->file);
    free(dropped);
}

/* -- the driver's functions ------------------------------------------------------------------------------------- */

int cuGetErrorName(int code, const char **name) {
    *name = code == INVALID_VALUE        ? "CUDA_ERROR_INVALID_VALUE"
            : code == OUT_OF_MEMORY      ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == NO_DEVICE          ? "CUDA_ERROR_NO_DEVICE"
            : code == INVALID_DEVICE     ? "CUDA_ERROR_INVALID_DEVICE"
            : code == INVALID_CONTEXT    ? "CUDA_ERROR_INVALID_CONTEXT"
            : code == ALREADY_REGISTERED ? "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
                                         : "CUDA_ERROR_UNKNOWN";
    return OK;
}

int cuInit(unsigned flags) {
    (void)flags;
    int code = failure("cuInit");
    if (code) return code;
    if (device_count() <= 0) return NO_DEVICE;
    initialized = 1;
    return OK;
}

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return failure("cuDriverGetVersion");
}

int cuDeviceGetCount(int *count) {
    ENTER("cuDeviceGetCount");
    for (*count = 0; machine_device(*count) >= 0;) ++*count;
    return OK;
}

int cuDeviceGet(int *device, int ordinal) {
    ENTER("cuDeviceGet");
    if (machine_device(ordinal) < 0) return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    ENTER("cuDeviceGetUuid_v2");
    memset(uuid, 0xda, 16);
    uuid[15] = (unsigned char)machine_device(device);
    return OK;
}

/* Whether a device can use the memory of another one directly. */
static int are_peers(int device, int other) {
    char path[4096];
    in_folder(path, "apart");
    FILE *file = fopen(path, "r");
    int first, second, found = 1;
    if (!file) return 1;
    while (fscanf(file, "%d %d", &first, &second) == 2)
        if ((first == device && second == other) || (first == other && second == device)) found = 0;
    fclose(file);
    return found;
}

int cuDeviceCanAccessPeer(int *can, int device, int other) {
    ENTER("cuDeviceCanAccessPeer");
    if (machine_device(device) < 0 || machine_device(other) < 0) return INVALID_DEVICE;
    *can = device != other && are_peers(machine_device(device), machine_device(other));
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER("cuDevicePrimaryCtxRetain");
    if (machine_device(device) < 0) return INVALID_DEVICE;
    char name[64];
    snprintf(name, sizeof name, "context-%d-%d", getpid(), machine_device(device));
    mark(name);
    *context = contexts + device;
    return OK;
}

int cuCtxPushCurrent_v2(void *context) {
    ENTER("cuCtxPushCurrent_v2");
    stack[depth++] = context;
    return OK;
}

int cuCtxPopCurrent_v2(void **context) {
    if (!depth) return INVALID_CONTEXT;
    *context = stack[--depth];
    return OK;
}

int cuCtxSynchronize(void) {
    ENTER_CONTEXT("cuCtxSynchronize");
    pthread_mutex_lock(&lock);
    run_all();
    pthread_mutex_unlock(&lock);
    record("cuCtxSynchronize", 0);
    return OK;
}

int cuStreamCreate(void **stream, unsigned flags) {
    ENTER_CONTEXT("cuStreamCreate");
    stream_t *added = calloc(1, sizeof *added);
    added->blocking = !(flags & 1);
    added->next = streams;
    *stream = streams = added;
    return OK;
}

int cuStreamSynchronize(void *stream) {
    ENTER_CONTEXT("cuStreamSynchronize");
    pthread_mutex_lock(&lock);
    stream_t *found = stream_of(stream);
    if (found == &legacy) run_legacy();
    else run(found, found->queued);
    pthread_mutex_unlock(&lock);
    record("cuStreamSynchronize", 0);
    return OK;
}

int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    ENTER_CONTEXT("cuEventCreate");
    *event = calloc(1, sizeof(event_t));
    return OK;
}

int cuEventRecord(void *event, void *stream) {
    ENTER_CONTEXT("cuEventRecord");
    *(event_t *)event = (event_t){stream_of(stream), stream_of(stream)->queued};
    return OK;
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)flags;
    ENTER_CONTEXT("cuStreamWaitEvent");
    event_t *recorded = event;
    if (recorded->stream)
        append(stream_of(stream), (operation_t){.other = recorded->stream, .until = recorded->until});
    return OK;
}

int cuEventSynchronize(void *event) {
    ENTER_CONTEXT("cuEventSynchronize");
    event_t *recorded = event;
    pthread_mutex_lock(&lock);
    if (recorded->stream == &legacy) run_legacy();
    else if (recorded->stream) run(recorded->stream, recorded->until);
    pthread_mutex_unlock(&lock);
    return OK;
}

int cuEventDestroy_v2(void *event) {
    free(event);
    return OK;
}

int cuMemAlloc_v2(ptr_t *address, size_t size) {
    ENTER_CONTEXT("cuMemAlloc_v2");
    int code = allocate(address, size, ORDINARY);
    if (!code) record("cuMemAlloc_v2", size);
    return code;
}

int cuMemFree_v2(ptr_t address) {
    ENTER_CONTEXT("cuMemFree_v2");
    pthread_mutex_lock(&lock);
    allocation_t *found = find(address, 1);
    int code = INVALID_VALUE;
    if (found && (ptr_t)found->base == address && found->kind != IMPORTED) {
        char name[128];
        run_all();
        snprintf(name, sizeof name, "memory-%lu-%lu", found->owner, found->number);
        unmark(name);
        in_use -= found->size;
        drop(found);
        code = OK;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int cuMemGetInfo_v2(size_t *available, size_t *total) {
    ENTER_CONTEXT("cuMemGetInfo_v2");
    *total = (size_t)setting("limit", 1L << 30);
    *available = *total - in_use;
    return OK;
}

int cuMemGetAddressRange_v2(ptr_t *base, size_t *size, ptr_t address) {
    ENTER_CONTEXT("cuMemGetAddressRange_v2");
    pthread_mutex_lock(&lock);
    allocation_t *found = find(address, 1);
    if (found) {
        *base = (ptr_t)found->base;
        *size = found->size;
    }
    pthread_mutex_unlock(&lock);
    return found ? OK : NOT_FOUND;
}

int cuPointerGetAttribute(void *value, int attribute, ptr_t address) {
    ENTER("cuPointerGetAttribute");
    pthread_mutex_lock(&lock);
    allocation_t *found = find(address, 1);
    int code = INVALID_VALUE;
    if (found) {
        code = OK;
        if (attribute == 9) *(int *)value = found->device;
        else if (attribute == 10) *(int *)value = found->kind == ORDINARY;
        else if (attribute == 2) *(unsigned *)value = 2;
        else if (attribute == 7) *(unsigned long long *)value = found->number;
        else code = INVALID_VALUE;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int cuMemcpyDtoH_v2(void *host, ptr_t address, size_t size) {
    ENTER_CONTEXT("cuMemcpyDtoH_v2");
    pthread_mutex_lock(&lock);
    run_legacy();
    int code = transfer(address, host, size, 0);
    pthread_mutex_unlock(&lock);
    if (!code) record("cuMemcpyDtoH_v2", size);
    return code;
}

int cuMemcpyHtoD_v2(ptr_t address, const void *host, size_t size) {
    ENTER_CONTEXT("cuMemcpyHtoD_v2");
    pthread_mutex_lock(&lock);
    run_legacy();
    int code = transfer(address, (void *)host, size, 1);
    pthread_mutex_unlock(&lock);
    if (!code) record("cuMemcpyHtoD_v2", size);
    return code;
}

int cuMemcpyDtoD_v2(ptr_t to, ptr_t from, size_t size) {
    ENTER_CONTEXT("cuMemcpyDtoD_v2");
    pthread_mutex_lock(&lock);
    run_legacy();
    char *bytes = malloc(size);
    allocation_t *source = find(from, size), *target = find(to, size);
    int code = source && target && source->device == target->device ? OK : INVALID_VALUE;
    if (!code) code = transfer(from, bytes, size, 0);
    if (!code) code = transfer(to, bytes, size, 1);
    free(bytes);
    pthread_mutex_unlock(&lock);
    if (!code) record("cuMemcpyDtoD_v2", size);
    return code;
}

int cuMemcpyPeer(ptr_t to, void *to_context, ptr_t from, void *from_context, size_t size) {
    ENTER_CONTEXT("cuMemcpyPeer");
    pthread_mutex_lock(&lock);
    run_legacy();
    char *bytes = malloc(size);
    allocation_t *source = find(from, size), *target = find(to, size);
    int code = source && target && contexts + source->device == from_context && contexts + target->device == to_context
                   ? OK
                   : INVALID_VALUE;
    if (!code) code = transfer(from, bytes, size, 0);
    if (!code) code = transfer(to, bytes, size, 1);
    free(bytes);
    pthread_mutex_unlock(&lock);
    if (!code) record("cuMemcpyPeer", size);
    return code;
}

int cuMemHostRegister_v2(void *start, size_t size, unsigned flags) {
    (void)flags;
    ENTER_CONTEXT("cuMemHostRegister_v2");
    pthread_mutex_lock(&lock);
    int code = OK;
    for (pinned_t *each = pinned_ranges; each; each = each->next)
        if ((char *)start < each->start + each->size && each->start < (char *)start + size) code = ALREADY_REGISTERED;
    if (!code) {
        char name[64];
        pinned_t *added = malloc(sizeof *added);
        *added = (pinned_t){pinned_ranges, start, size};
        pinned_ranges = added;
        snprintf(name, sizeof name, "pinned-%d-%p", getpid(), start);
        mark(name);
    }
    pthread_mutex_unlock(&lock);
    if (!code) record("cuMemHostRegister_v2", size);
    return code;
}

int cuMemHostUnregister(void *start) {
    ENTER_CONTEXT("cuMemHostUnregister");
    pthread_mutex_lock(&lock);
    int code = NOT_REGISTERED;
    for (pinned_t **each = &pinned_ranges; *each; each = &(*each)->next)
        if ((*each)->start == start) {
            char name[64];
            pinned_t *dropped = *each;
            *each = dropped->next;
            free(dropped);
            snprintf(name, sizeof name, "pinned-%d-%p", getpid(), start);
            unmark(name);
            code = OK;
            break;
        }
    pthread_mutex_unlock(&lock);
    return code;
}

int cuIpcGetMemHandle(handle_t *handle, ptr_t address) {
    ENTER_CONTEXT("cuIpcGetMemHandle");
    pthread_mutex_lock(&lock);
    allocation_t *found = find(address, 1);
    int code = INVALID_VALUE;
    if (found && found->kind == ORDINARY && (ptr_t)found->base == address) {
        named_t named = {MAGIC, found->owner, found->number, found->size, (uint64_t)machine_device(found->device)};
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &named, sizeof named);
        code = OK;
    }
    pthread_mutex_unlock(&lock);
    if (!code) record("cuIpcGetMemHandle", 0);
    return code;
}

int cuIpcOpenMemHandle_v2(ptr_t *address, handle_t handle, unsigned flags) {
    (void)flags;
    ENTER_CONTEXT("cuIpcOpenMemHandle_v2");
    named_t named;
    memcpy(&named, &handle, sizeof named);
    if (named.magic != MAGIC || (pid_t)named.owner == getpid()) return INVALID_CONTEXT;
    if ((int)named.device != machine_device((int)(stack[depth - 1] - contexts))) return INVALID_VALUE;
    char name[128], path[4096];
    pthread_mutex_lock(&lock);
    for (allocation_t *each = allocations; each; each = each->next)
        if (each->kind == IMPORTED && each->owner == named.owner && each->number == named.number) {
            each->opens++; /* as the real driver: the same address, which is to be closed as often */
            *address = (ptr_t)each->base;
            pthread_mutex_unlock(&lock);
            return OK;
        }
    pthread_mutex_unlock(&lock);
    snprintf(name, sizeof name, "memory-%lu-%lu", (unsigned long)named.owner, (unsigned long)named.number);
    in_folder(path, name);
    if (kill((pid_t)named.owner, 0) && errno == ESRCH) return INVALID_VALUE; /* the memory went with its process */
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    allocation_t *added = calloc(1, sizeof *added);
    added->base = mmap(NULL, named.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    added->size = named.size;
    added->file = file;
    added->kind = IMPORTED;
    added->opens = 1;
    added->owner = named.owner;
    added->number = named.number;
    added->device = (int)(stack[depth - 1] - contexts);
    added->next = allocations;
    allocations = added;
    *address = (ptr_t)added->base;
    pthread_mutex_unlock(&lock);
    snprintf(name, sizeof name, "opened-%d-%lu-%lu", getpid(), added->owner, added->number);
    mark(name);
    record("cuIpcOpenMemHandle_v2", named.size);
    return OK;
}

int cuIpcCloseMemHandle(ptr_t address) {
    ENTER_CONTEXT("cuIpcCloseMemHandle");
    pthread_mutex_lock(&lock);
    allocation_t *found = find(address, 1);
    int code = INVALID_VALUE;
    if (found && found->kind == IMPORTED && (ptr_t)found->base == address && --found->opens) {
        code = OK;
    } else if (found && found->kind == IMPORTED && (ptr_t)found->base == address) {
        char name[128];
        run_all();
        snprintf(name, sizeof name, "opened-%d-%lu-%lu", getpid(), found->owner, found->number);
        unmark(name);
        drop(found);
        code = OK;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

/* -- what tests need in addition --------------------------------------------------------------------------------- */

/* Memory that has no handle for other processes, like JAX's and that of torch's expandable segments. */
int standinAllocateVirtual(ptr_t *address, size_t size) {
    return depth ? allocate(address, size, VIRTUAL) : INVALID_CONTEXT;
}

/* Queue a write of *size* bytes *value*: it happens when something waits for the stream. */
int standinFill(void *stream, ptr_t target, size_t size, int value) {
    pthread_mutex_lock(&lock);
    append(stream_of(stream), (operation_t){.target = target, .size = size, .value = value});
    pthread_mutex_unlock(&lock);
    return OK;
}
