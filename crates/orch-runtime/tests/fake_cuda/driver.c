// A CUDA driver without a device, for tests: memory is the host's, kernels are the few below, and time passes as they
// say. Every call can be made to fail, and those that matter are written to a log. Graphs run their nodes in the order
// that is least like that of their making and still keeps to the edges, so that a missing edge gives wrong results.
// Processes that cannot call what steers it set the environment variable FAKE_CUDA: lines `set KEY VALUE` and
// `fail FUNCTION CODE CALLS`, as `fake_set` and `fake_fail` below take them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdarg.h>
#include <stdint.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
typedef unsigned int u32;

typedef struct { char opaque[64]; } Value;
typedef struct { int id; char pad[4]; union { Value value; u32 words[16]; }; } CUlaunchAttribute;
typedef struct {
    u32 gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void *hStream;
    CUlaunchAttribute *attrs;
    u32 numAttrs;
} CUlaunchConfig;
typedef struct {
    void *func;
    u32 gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void **kernelParams, **extra;
    void *kern, *ctx;
} KernelNodeParams;
typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD; int srcMemoryType; const void *srcHost; CUdeviceptr srcDevice;
    void *srcArray, *reserved0; size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD; int dstMemoryType; void *dstHost; CUdeviceptr dstDevice;
    void *dstArray, *reserved1; size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} Memcpy3D;
typedef struct { unsigned char from_port, to_port, type, reserved[5]; } EdgeData;

// What the tests steer.
static char log_text[1 << 20];
static size_t log_len;
static struct { char symbol[64]; CUresult code; int after; } failures[16];
static int failure_count;
static int64_t driver_version = 13000, device_count = 1, memory_total = 1 << 20, capability = 90, max_shared = 232448, sms = 132;

// What a device remembers.
static CUresult broken;   // after a fault every call fails with this
static CUresult fault;    // a kernel has failed, and no call has reported it yet
static int64_t memory_used;
static double clock_us;

static void note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_len += (size_t)vsnprintf(log_text + log_len, sizeof log_text - log_len, format, args);
    // What exceeds the log is left out.
    if (log_len >= sizeof log_text) log_len = sizeof log_text - 1;
    va_end(args);
}

static CUresult enter(const char *symbol) {
    if (broken) return broken;
    for (int i = 0; i < failure_count; ++i)
        if (!strcmp(failures[i].symbol, symbol) && failures[i].after-- == 0) {
            if (failures[i].code >= 700 && failures[i].code < 720) broken = failures[i].code;
            return failures[i].code;
        }
    return 0;
}
#define ENTER() do { CUresult status = enter(__func__); if (status) return status; } while (0)
#define SURFACE() do { if (fault) return broken = fault; } while (0)

const char *fake_log(void) { return log_text; }
void fake_clear_log(void) { log_len = 0; log_text[0] = 0; }
void fake_fail(const char *symbol, int code, int after) {
    snprintf(failures[failure_count].symbol, 64, "%s", symbol);
    failures[failure_count].code = code;
    failures[failure_count++].after = after;
}
void fake_set(const char *key, int64_t value) {
    if (!strcmp(key, "driver_version")) driver_version = value;
    else if (!strcmp(key, "device_count")) device_count = value;
    else if (!strcmp(key, "memory_total")) memory_total = value;
    else if (!strcmp(key, "capability")) capability = value;
    else if (!strcmp(key, "max_shared")) max_shared = value;
    else if (!strcmp(key, "sms")) sms = value;
    else abort();
}
int64_t fake_memory_used(void) { return memory_used; }

static void steer_by_environment(void) {
    char name[64];
    long long value;
    int calls;
    for (const char *line = getenv("FAKE_CUDA"); line && *line; line = strchr(line, '\n'), line += line != 0) {
        if (sscanf(line, "set %63s %lld", name, &value) == 2) fake_set(name, value);
        else if (sscanf(line, "fail %63s %lld %d", name, &value, &calls) == 3) fake_fail(name, (int)value, calls);
        else abort();
    }
}

// The first function that is called.
CUresult cuDriverGetVersion(int *version) {
    steer_by_environment();
    ENTER();
    *version = (int)driver_version;
    return 0;
}
CUresult cuInit(u32 flags) { (void)flags; if (!device_count) return 100; return enter(__func__); }
CUresult cuGetErrorName(CUresult code, const char **text) {
    switch (code) {
        case 1: *text = "CUDA_ERROR_INVALID_VALUE"; return 0;
        case 2: *text = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
        case 34: *text = "CUDA_ERROR_STUB_LIBRARY"; return 0;
        case 209: *text = "CUDA_ERROR_NO_BINARY_FOR_GPU"; return 0;
        case 214: *text = "CUDA_ERROR_ECC_UNCORRECTABLE"; return 0;
        case 500: *text = "CUDA_ERROR_NOT_FOUND"; return 0;
        case 700: *text = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0;
        case 719: *text = "CUDA_ERROR_LAUNCH_FAILED"; return 0;
        case 803: *text = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; return 0;
    }
    *text = 0;
    return 1;
}
CUresult cuGetErrorString(CUresult code, const char **text) { *text = code == 1000 ? 0 : "as the driver says"; return 0; }

CUresult cuDeviceGetCount(int *count) { ENTER(); *count = (int)device_count; return 0; }
CUresult cuDeviceGet(int *device, int ordinal) { ENTER(); *device = ordinal; return 0; }
CUresult cuDeviceGetName(char *name, int len, int device) { ENTER(); snprintf(name, (size_t)len, "Fake %d", device); return 0; }
CUresult cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; ENTER(); *bytes = (size_t)memory_total; return 0; }
CUresult cuDeviceGetAttribute(int *value, int id, int device) {
    (void)device;
    ENTER();
    switch (id) {
        case 13: *value = 1980000; break;
        case 16: *value = (int)sms; break;
        case 36: *value = 3201000; break;
        case 37: *value = 6144; break;
        case 38: *value = 4096; break;
        case 39: *value = 2048; break;
        case 75: *value = (int)capability / 10; break;
        case 76: *value = (int)capability % 10; break;
        case 81: *value = 233472; break;
        case 82: *value = 65536; break;
        case 97: *value = (int)max_shared; break;
        default: return 1;
    }
    return 0;
}
static int context;
static __thread void *current;
CUresult cuDevicePrimaryCtxRetain(void **made, int device) { (void)device; ENTER(); *made = &context; return 0; }
CUresult cuDevicePrimaryCtxRelease_v2(int device) { (void)device; ENTER(); return 0; }
CUresult cuCtxSetCurrent(void *made) { ENTER(); current = made; return 0; }
#define CURRENT() do { ENTER(); if (!current) return 201; } while (0)

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CURRENT();
    *free_bytes = (size_t)(memory_total - memory_used);
    *total = (size_t)memory_total;
    return 0;
}
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    CURRENT();
    if (!bytes) return 1;
    if (bytes > (size_t)(memory_total - memory_used)) return 2;
    // The size stands before the memory, which is left dirty.
    char *block = aligned_alloc(256, 256 + (bytes + 255) / 256 * 256);
    *(size_t *)block = bytes;
    memset(block + 256, 0xAA, bytes);
    memory_used += (int64_t)bytes;
    *address = (CUdeviceptr)(block + 256);
    return 0;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
    CURRENT();
    char *block = (char *)address - 256;
    memory_used -= (int64_t)*(size_t *)block;
    free(block);
    return 0;
}
CUresult cuMemHostAlloc(void **start, size_t bytes, u32 flags) { (void)flags; CURRENT(); *start = malloc(bytes); return 0; }
CUresult cuMemFreeHost(void *start) { CURRENT(); free(start); return 0; }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, void *stream) {
    (void)stream;
    CURRENT();
    SURFACE();
    memcpy((void *)to, from, bytes);
    clock_us += 2;
    note("upload %zu\n", bytes);
    return 0;
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream) {
    (void)stream;
    CURRENT();
    SURFACE();
    memcpy(to, (void *)from, bytes);
    clock_us += 2;
    note("download %zu\n", bytes);
    return 0;
}
typedef struct Node Node;
typedef struct Stream Stream;
// In a stream that is captured, a new node of the graph; 0 in others.
static Node *captured_node(Stream *stream);
static void capture_copy(Node *node, CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream) {
    CURRENT();
    Node *node = captured_node(stream);
    if (node) return capture_copy(node, to, from, bytes), 0;
    memmove((void *)to, (void *)from, bytes);
    clock_us += 2;
    note("copy %zu\n", bytes);
    return 0;
}
CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, void *stream) {
    (void)stream;
    CURRENT();
    memset((void *)at, value, bytes);
    clock_us += 100;
    note("fill %zu\n", bytes);
    return 0;
}

// A stream begins with how a library (cublaslt.c) puts work into it: into the graph that it captures, if it does.
typedef void Work(void *);
struct Stream {
    void (*enqueue)(struct Stream *, const char *name, double us, Work *work, void *data);
    struct Graph *captured;
};
static void enqueue(Stream *stream, const char *name, double us, Work *work, void *data);
CUresult cuStreamCreate(void **made, u32 flags) {
    CURRENT();
    if (flags != 1) return 1;
    Stream *stream = calloc(1, sizeof *stream);
    stream->enqueue = enqueue;
    *made = stream;
    return 0;
}
CUresult cuStreamDestroy_v2(void *stream) { CURRENT(); free(stream); return 0; }
CUresult cuStreamSynchronize(void *stream) { (void)stream; CURRENT(); SURFACE(); note("wait\n"); return 0; }
CUresult cuStreamIsCapturing(Stream *stream, int *status) { CURRENT(); *status = stream && stream->captured; return 0; }
CUresult cuStreamWaitEvent(Stream *stream, void *event, u32 flags) {
    (void)stream, (void)event;
    CURRENT();
    if (flags) return 1;
    note("follow\n");
    return 0;
}
// Work is done when it is enqueued: what would be held back is only told.
CUresult cuStreamWaitValue32_v2(void *stream, CUdeviceptr at, u32 value, u32 flags) {
    (void)stream;
    CURRENT();
    if (flags != 1 || *(u32 *)at == value) return 1;
    note("hold\n");
    return 0;
}
CUresult cuEventCreate(void **event, u32 flags) { CURRENT(); if (flags) return 1; *event = calloc(1, sizeof(double)); return 0; }
CUresult cuEventDestroy_v2(void *event) { CURRENT(); free(event); return 0; }
CUresult cuEventRecord(void *event, void *stream) { (void)stream; CURRENT(); *(double *)event = clock_us; return 0; }
CUresult cuThreadExchangeStreamCaptureMode(int *mode) { static int now; CURRENT(); int before = now; now = *mode; *mode = before; return 0; }
CUresult cuEventQuery(void *event) { (void)event; CURRENT(); SURFACE(); return 0; }
CUresult cuEventSynchronize(void *event) { (void)event; CURRENT(); SURFACE(); return 0; }
CUresult cuEventElapsedTime(float *ms, void *from, void *to) {
    CURRENT();
    *ms = (float)((*(double *)to - *(double *)from) / 1000);
    return 0;
}

// A module is the word "fake", perhaps with the instruction set that it is for, and then the names of its kernels, each in a line;
// or PTX with its kernels' first lines.
typedef struct { char name[128]; int max_dynamic, is_large_cluster; } Function;
typedef struct { Function functions[16]; int count; } Module;
// Names are those of C, and no longer than a profiler shows.
static int add_function(Module *module, const char *name, int length) {
    if (length < 1 || length > 64 || strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") < (size_t)length)
        return 0;
    if (*name >= '0' && *name <= '9') return 0;
    Function *function = &module->functions[module->count++];
    snprintf(function->name, sizeof function->name, "%.*s", length, name);
    function->max_dynamic = 49152;
    return 1;
}
// The newest version of PTX that the driver compiles: 85 for 8.5.
static int newest_ptx(void) {
    int major = (int)driver_version / 1000, minor = (int)driver_version % 1000 / 10;
    return 10 * (major - 4) + minor - (major == 12 && minor > 5);
}
static CUresult load_ptx(Module *module, const char *text, int major, int minor, int arch, char *log, size_t size) {
    if (10 * major + minor > newest_ptx()) {
        snprintf(log, size, "ptxas fatal   : Unsupported .version %d.%d; current version is '%d.%d'\n", major, minor, newest_ptx() / 10,
                 newest_ptx() % 10);
        return 222;
    }
    if (arch > capability) return 209;
    note("compile PTX %d.%d for sm_%d\n", major, minor, (int)capability);
    while ((text = strstr(text, ".entry "))) {
        text += strlen(".entry ");
        if (!add_function(module, text, (int)strcspn(text, "("))) return 218;
    }
    return 0;
}
CUresult cuModuleLoadDataEx(void **made, const void *image, u32 count, int *options, void **values) {
    char none[1], *log = none;
    size_t size = 0;
    for (u32 i = 0; i < count; ++i) {
        if (options[i] == 5) log = values[i];
        else if (options[i] == 6) size = (size_t)values[i];
        else return 1;
    }
    CUresult status = enter(__func__);
    if (status == 218) snprintf(log, size, "ptxas application ptx input, line 7; fatal   : Parsing error near '.word': syntax error\n");
    if (status) return status;
    if (!current) return 201;
    Module *module = calloc(1, sizeof *module);
    const char *line = image;
    int arch = (int)capability, major, minor;
    while (!strncmp(line, "//", 2) || *line == '\n') line = strchr(line, '\n') + 1;
    if (sscanf(line, ".version %d.%d .target sm_%d", &major, &minor, &arch) == 3) {
        *made = module;
        return load_ptx(module, line, major, minor, arch, log, size);
    }
    sscanf(line, "fake sm_%d", &arch);
    if (strncmp(line, "fake", 4)) return 200;
    if (arch / 10 != capability / 10 || arch > capability) return 209;
    line = strchr(line, '\n') + 1;
    for (const char *end; (end = strchr(line, '\n')); line = end + 1)
        if (!add_function(module, line, (int)(end - line))) return 200;
    *made = module;
    return 0;
}
CUresult cuModuleUnload(void *module) { CURRENT(); free(module); note("unload\n"); return 0; }
CUresult cuModuleGetFunction(void **made, void *handle, const char *name) {
    CURRENT();
    Module *module = handle;
    for (int i = 0; i < module->count; ++i)
        if (!strcmp(module->functions[i].name, name)) { *made = &module->functions[i]; return 0; }
    return 500;
}
CUresult cuFuncGetAttribute(int *value, int id, void *handle) {
    CURRENT();
    Function *function = handle;
    switch (id) {
        case 0: *value = 1024; break;
        case 1: *value = 512; break;
        case 3: *value = 16; break;
        case 4: *value = 40; break;
        case 8: *value = function->max_dynamic; break;
        default: return 1;
    }
    return 0;
}
CUresult cuFuncSetAttribute(void *handle, int id, int value) {
    CURRENT();
    Function *function = handle;
    note("attribute %s %d=%d\n", function->name, id, value);
    if (id == 8) { if (value > max_shared) return 1; function->max_dynamic = value; }
    else if (id == 14) function->is_large_cluster = value;
    else return 1;
    return 0;
}
typedef struct { int cluster, is_cooperative, is_early; } LaunchAttributes;
static LaunchAttributes attributes_of(const CUlaunchConfig *config) {
    LaunchAttributes found = {1, 0, 0};
    for (u32 i = 0; i < config->numAttrs; ++i) {
        if (config->attrs[i].id == 2) found.is_cooperative = (int)config->attrs[i].words[0];
        else if (config->attrs[i].id == 4) found.cluster = (int)config->attrs[i].words[0];
        else if (config->attrs[i].id == 6) found.is_early = (int)config->attrs[i].words[0];
        else abort();
    }
    return found;
}

// Kernels work on one float for each thread, and take 5 microseconds. Those of models (MODEL_k0_.., and k_.. while they are
// timed) do nothing.
static int is_models(const char *name) {
    if (!strncmp(name, "k_", 2)) return 1;
    for (; (name = strstr(name, "_k")); ++name) if (name[2] >= '0' && name[2] <= '9') return 1;
    return 0;
}
static int parameters(const char *name) {
    return is_models(name) ? 0 : !strcmp(name, "add") ? 3 : !strcmp(name, "neg") ? 2 : 1;
}
static void work(const char *name, u32 threads, const uint64_t *args) {
    clock_us += 5;
    const float *a = (const float *)args[0], *b = (const float *)args[1];
    if (!strcmp(name, "add")) for (u32 i = 0; i < threads; ++i) ((float *)args[2])[i] = a[i] + b[i];
    else if (!strcmp(name, "neg")) for (u32 i = 0; i < threads; ++i) ((float *)args[1])[i] = -a[i];
    else if (!strcmp(name, "overrun")) fault = 700;
    else if (!strcmp(name, "defect")) fault = 214;
    else if (!is_models(name)) abort();
}
static CUresult check_shape(const Function *f, u32 grid, u32 block, u32 shared, int cluster) {
    if (!grid || !block || block > 1024 || grid % (u32)cluster) return 1;
    if ((int)shared > f->max_dynamic) return 1;
    if (cluster > 8 && !f->is_large_cluster) return 912;
    return 0;
}
static void read_arguments(const char *name, void *const *params, uint64_t *args) {
    memset(args, 0, 3 * sizeof *args);
    for (int i = 0; i < parameters(name); ++i) args[i] = *(uint64_t *)params[i];
}
CUresult cuTensorMapEncodeTiled(void *map, int dtype, u32 rank, CUdeviceptr at, const uint64_t *extents, const uint64_t *strides,
                                const u32 *tile, const u32 *steps, int interleave, int swizzle, int promotion, int fill) {
    CURRENT();
    (void)map, (void)interleave, (void)promotion, (void)fill;
    if (dtype != 1 || rank < 2 || rank > 5 || at % 16 || swizzle != 3 || tile[0] != 64 || tile[1] > 256) return 1;
    for (u32 i = 0; i < rank; i++) if (extents[i] == 0 || steps[i] != 1 || (i && strides[i - 1] % 16)) return 1;
    note("tensor map of rank %u, %u rows\n", rank, tile[1]);
    return 0;
}

static void capture_launch(Node *node, Function *function, u32 threads, void *const *params);
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, void *handle, void **params, void **extra) {
    CURRENT();
    Function *f = handle;
    LaunchAttributes attributes = attributes_of(config);
    if (extra || attributes.is_cooperative && attributes.is_early) return 1;
    CUresult status = check_shape(f, config->gridDimX, config->blockDimX, config->sharedMemBytes, attributes.cluster);
    if (status) return status;
    Node *node = captured_node(config->hStream);
    if (node) return capture_launch(node, f, config->gridDimX * config->blockDimX, params), 0;
    note("launch %s %ux%u cluster %d shared %u%s%s\n", f->name, config->gridDimX, config->blockDimX, attributes.cluster,
         config->sharedMemBytes, attributes.is_cooperative ? " cooperative" : "", attributes.is_early ? " early" : "");
    uint64_t args[3];
    read_arguments(f->name, params, args);
    work(f->name, config->gridDimX * config->blockDimX, args);
    return 0;
}

struct Node {
    Function *function;
    // Of a library, or of a graph within the graph.
    const char *name;
    double us;
    Work *work;
    void *data;
    struct Graph *child;
    u32 threads, grid, block, shared;
    int cluster;
    uint64_t args[3];
    CUdeviceptr from, to;
    size_t bytes;
    unsigned char waits[64];
};
typedef struct Graph { Node *nodes[64]; int count; } Graph;
static Node *captured_node(Stream *stream) {
    if (!stream || !stream->captured) return 0;
    Node *node = calloc(1, sizeof *node);
    stream->captured->nodes[stream->captured->count++] = node;
    return node;
}
static void capture_copy(Node *node, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    node->to = to;
    node->from = from;
    node->bytes = bytes;
    note("captured copy %zu\n", bytes);
}
static void capture_launch(Node *node, Function *function, u32 threads, void *const *params) {
    node->function = function;
    node->threads = threads;
    read_arguments(function->name, params, node->args);
    note("captured %s\n", function->name);
}
static void run_node(const Node *node) {
    if (node->function) work(node->function->name, node->threads, node->args);
    else if (node->child) for (int i = 0; i < node->child->count; ++i) run_node(node->child->nodes[i]);
    else if (node->work) { clock_us += node->us; node->work(node->data); }
    else { memmove((void *)node->to, (void *)node->from, node->bytes); clock_us += 2; }
}
CUresult cuGraphCreate(void **made, u32 flags) { CURRENT(); if (flags) return 1; *made = calloc(1, sizeof(Graph)); return 0; }
CUresult cuGraphDestroy(void *graph) { CURRENT(); free(graph); return 0; }
static int index_of(const Graph *graph, const void *node) {
    for (int i = 0; i < graph->count; ++i) if (graph->nodes[i] == node) return i;
    abort();
}
static Node *add_node(Graph *graph, void *const *after, size_t count) {
    Node *node = calloc(1, sizeof *node);
    for (size_t i = 0; i < count; ++i) {
        node->waits[index_of(graph, after[i])] = 1;
        note(" %d", index_of(graph, after[i]));
    }
    note("\n");
    graph->nodes[graph->count++] = node;
    return node;
}
CUresult cuGraphAddKernelNode_v2(void **made, Graph *graph, void *const *after, size_t count, const KernelNodeParams *p) {
    CURRENT();
    Function *f = p->func;
    if (p->extra || p->kern) return 1;
    CUresult status = check_shape(f, p->gridDimX, p->blockDimX, p->sharedMemBytes, 1);
    if (status) return status;
    note("node %d: %s %ux%u shared %u after", graph->count, f->name, p->gridDimX, p->blockDimX, p->sharedMemBytes);
    Node *node = add_node(graph, after, count);
    node->function = f;
    node->threads = p->gridDimX * p->blockDimX;
    read_arguments(f->name, p->kernelParams, node->args);
    *made = node;
    return 0;
}
CUresult cuGraphAddMemcpyNode(void **made, Graph *graph, void *const *after, size_t count, const Memcpy3D *p, void *ctx) {
    CURRENT();
    if (ctx != &context || p->srcMemoryType != 2 || p->dstMemoryType != 2 || p->Height != 1 || p->Depth != 1) return 1;
    if (!p->WidthInBytes) return 1;
    note("node %d: copy %zu after", graph->count, p->WidthInBytes);
    Node *node = add_node(graph, after, count);
    node->from = p->srcDevice;
    node->to = p->dstDevice;
    node->bytes = p->WidthInBytes;
    *made = node;
    return 0;
}
CUresult cuStreamBeginCapture_v2(Stream *stream, int mode) {
    CURRENT();
    if (mode != 2 || stream->captured) return 1;
    stream->captured = calloc(1, sizeof(Graph));
    return 0;
}
CUresult cuStreamEndCapture(Stream *stream, void **graph) {
    Graph *captured = stream->captured;
    stream->captured = 0;
    CURRENT();
    if (!captured) return 1;
    *graph = captured;
    return 0;
}
static void enqueue(Stream *stream, const char *name, double us, Work *work, void *data) {
    if (!stream->captured) {
        note("%s\n", name);
        clock_us += us;
        work(data);
        return;
    }
    Node *node = captured_node(stream);
    node->name = name;
    node->us = us;
    node->work = work;
    node->data = data;
}
CUresult cuGraphAddChildGraphNode(void **made, Graph *graph, void *const *after, size_t count, Graph *child) {
    CURRENT();
    if (!child || !child->count) return 1;
    const Node *first = child->nodes[0];
    note("node %d: graph of %s after", graph->count, first->name ? first->name : "a run");
    Node *node = add_node(graph, after, count);
    node->child = malloc(sizeof *child);
    *node->child = *child;
    *made = node;
    return 0;
}
CUresult cuGraphKernelNodeSetAttribute(Node *node, int id, const u32 *value) {
    CURRENT();
    if (id == 2) return note("  cooperative\n"), 0;
    if (id != 4) return 1;
    note("  cluster %u\n", value[0]);
    return value[0] > 8 && !node->function->is_large_cluster ? 912 : 0;
}
CUresult cuGraphAddDependencies_v2(Graph *graph, void *const *from, void *const *to, const EdgeData *data, size_t count) {
    CURRENT();
    for (size_t i = 0; i < count; ++i) {
        Node *earlier = from[i], *later = to[i];
        if (data[i].from_port != 1 || data[i].to_port || data[i].type != 1 || !earlier->function) return 1;
        later->waits[index_of(graph, earlier)] = 1;
        note("  early after %d\n", index_of(graph, earlier));
    }
    return 0;
}
CUresult cuGraphInstantiateWithFlags(void **made, Graph *graph, unsigned long long flags) {
    CURRENT();
    if (flags) return 1;
    Graph *copy = malloc(sizeof *copy);
    *copy = *graph;
    *made = copy;
    return 0;
}
// Graphs share their nodes with what they were made from.
CUresult cuGraphExecKernelNodeSetParams_v2(Graph *graph, Node *node, const KernelNodeParams *p) {
    CURRENT();
    if (node->function != p->func || node->threads != p->gridDimX * p->blockDimX || p->extra || p->kern) return 1;
    read_arguments(node->function->name, p->kernelParams, node->args);
    note("set node %d\n", index_of(graph, node));
    return 0;
}
CUresult cuGraphExecMemcpyNodeSetParams(Graph *graph, Node *node, const Memcpy3D *p, void *ctx) {
    CURRENT();
    if (node->function || ctx != &context || p->WidthInBytes != node->bytes) return 1;
    node->from = p->srcDevice;
    node->to = p->dstDevice;
    note("set node %d\n", index_of(graph, node));
    return 0;
}
CUresult cuGraphUpload(void *graph, void *stream) { (void)graph; (void)stream; CURRENT(); return 0; }
CUresult cuGraphExecDestroy(void *graph) { CURRENT(); free(graph); return 0; }
CUresult cuGraphLaunch(Graph *graph, Stream *stream) {
    CURRENT();
    if (stream && stream->captured) return 1;
    note("graph of %d:", graph->count);
    unsigned char done[64] = {0};
    for (int left = graph->count; left; --left) {
        // The last one that may run.
        int next = graph->count - 1;
        for (;; --next) {
            if (next < 0) abort();
            int is_ready = !done[next];
            for (int i = 0; i < next; ++i) is_ready &= !graph->nodes[next]->waits[i] || done[i];
            if (is_ready) break;
        }
        run_node(graph->nodes[next]);
        note(" %d", next);
        done[next] = 1;
    }
    note("\n");
    return 0;
}
