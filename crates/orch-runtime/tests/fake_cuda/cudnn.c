// A cuDNN without a device, for tests: it convolves in the host's memory what streams of the fake driver (driver.c) are
// given, as the header says: with strides, padding and dilation, with a bias for each map, an addend, and a rectifier. Types
// are f32 and, as the type of half precision, f16 that is read and written as the upper half of f32. A convolution takes 3
// microseconds. It is steered by the environment variable FAKE_CUDNN, or by `fake_set`: `version N`; `time N`, microseconds
// of a convolution; `status FUNCTION N`, what a function returns from then on; and by the latter alone `workspace N`, bytes
// that convolutions need, and `algorithm N`, the only one that is proposed.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>

typedef int Status;
enum { BAD_PARAM = 2000, NOT_SUPPORTED = 3000 };
typedef struct { int type, n, c, h, w, n_stride, c_stride, h_stride, w_stride; } Tensor;
typedef struct { int type, format, k, c, h, w; } Filter;
typedef struct { int pad_h, pad_w, u, v, dilation_h, dilation_w, mode, compute, groups, math; } Conv;
typedef struct { int mode, nan; } Activation;
typedef struct Stream { void (*enqueue)(struct Stream *, const char *, double, void (*)(void *), void *); } Stream;
typedef struct { Stream *stream; } Handle;
typedef struct { int algo; Status status; float time; size_t memory; int determinism, math, reserved[3]; } Proposal;

static size_t version = 92801;
static size_t workspace;
static double time_us = 3;
static int algorithm = 1;
static struct { char function[64]; Status status; } failures[8];
static int failure_count;

void fake_set(const char *key, const char *function, long long value) {
    if (!strcmp(key, "version")) version = (size_t)value;
    else if (!strcmp(key, "time")) time_us = (double)value;
    else if (!strcmp(key, "workspace")) workspace = (size_t)value;
    else if (!strcmp(key, "algorithm")) algorithm = (int)value;
    else if (!strcmp(key, "status")) {
        snprintf(failures[failure_count].function, 64, "%s", function);
        failures[failure_count++].status = (Status)value;
    } else abort();
}
static Status enter(const char *function) {
    for (int i = 0; i < failure_count; ++i)
        if (!strcmp(failures[i].function, function)) return failures[i].status;
    return 0;
}
#define ENTER() do { Status status = enter(__func__); if (status) return status; } while (0)

size_t cudnnGetVersion(void) {
    const char *steps = getenv("FAKE_CUDNN");
    char function[64];
    long long value;
    if (steps && sscanf(steps, "version %lld", &value) == 1) fake_set("version", "", value);
    if (steps && sscanf(steps, "time %lld", &value) == 1) fake_set("time", "", value);
    if (steps && sscanf(steps, "status %63s %lld", function, &value) == 2) fake_set("status", function, value);
    return version;
}
const char *cudnnGetErrorString(Status status) {
    return status == BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM" : status == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : 0;
}
Status cudnnCreate(Handle **handle) { ENTER(); *handle = calloc(1, sizeof(Handle)); return 0; }
Status cudnnDestroy(Handle *handle) { free(handle); return 0; }
Status cudnnSetStream(Handle *handle, Stream *stream) { ENTER(); handle->stream = stream; return 0; }

Status cudnnCreateTensorDescriptor(Tensor **made) { ENTER(); *made = calloc(1, sizeof(Tensor)); return 0; }
Status cudnnDestroyTensorDescriptor(Tensor *tensor) { free(tensor); return 0; }
Status cudnnSetTensor4dDescriptorEx(Tensor *tensor, int type, int n, int c, int h, int w,
                                    int n_stride, int c_stride, int h_stride, int w_stride) {
    ENTER();
    if (n < 1 || c < 1 || h < 1 || w < 1 || n_stride < 1 || c_stride < 1 || h_stride < 1 || w_stride < 1) return BAD_PARAM;
    *tensor = (Tensor){type, n, c, h, w, n_stride, c_stride, h_stride, w_stride};
    return type == 0 || type == 2 ? 0 : NOT_SUPPORTED;
}
Status cudnnCreateFilterDescriptor(Filter **made) { ENTER(); *made = calloc(1, sizeof(Filter)); return 0; }
Status cudnnDestroyFilterDescriptor(Filter *filter) { free(filter); return 0; }
Status cudnnSetFilter4dDescriptor(Filter *filter, int type, int format, int k, int c, int h, int w) {
    ENTER();
    *filter = (Filter){type, format, k, c, h, w};
    return format == 1 ? 0 : BAD_PARAM;
}
Status cudnnCreateConvolutionDescriptor(Conv **made) { ENTER(); *made = calloc(1, sizeof(Conv)); return 0; }
Status cudnnDestroyConvolutionDescriptor(Conv *conv) { free(conv); return 0; }
Status cudnnSetConvolution2dDescriptor(Conv *conv, int pad_h, int pad_w, int u, int v, int dilation_h, int dilation_w,
                                       int mode, int compute) {
    ENTER();
    *conv = (Conv){pad_h, pad_w, u, v, dilation_h, dilation_w, mode, compute, 0, 0};
    return mode == 1 && compute == 0 ? 0 : NOT_SUPPORTED;
}
Status cudnnSetConvolutionGroupCount(Conv *conv, int groups) { ENTER(); conv->groups = groups; return 0; }
Status cudnnSetConvolutionMathType(Conv *conv, int math) { ENTER(); conv->math = math; return 0; }
Status cudnnCreateActivationDescriptor(Activation **made) { ENTER(); *made = calloc(1, sizeof(Activation)); return 0; }
Status cudnnDestroyActivationDescriptor(Activation *activation) { free(activation); return 0; }
Status cudnnSetActivationDescriptor(Activation *activation, int mode, int nan, double bound) {
    ENTER();
    *activation = (Activation){mode, nan};
    return bound == 0 && nan == 0 ? 0 : BAD_PARAM;
}

static int reached(int input, int pad, int dilation, int window, int stride) {
    return (input + 2 * pad - dilation * (window - 1) - 1) / stride + 1;
}
// What the header says of sizes and types that belong together.
static Status check(const Tensor *x, const Filter *w, const Conv *conv, const Tensor *y) {
    if (x->type != w->type || x->type != y->type || x->n != y->n || x->c != w->c || w->k != y->c) return BAD_PARAM;
    if (conv->groups != 1 || x->c_stride != 1 || y->c_stride != 1) return NOT_SUPPORTED;
    if (conv->math != 1 && (conv->math != 3 || x->type != 0)) return NOT_SUPPORTED;
    if (y->h != reached(x->h, conv->pad_h, conv->dilation_h, w->h, conv->u)) return BAD_PARAM;
    return y->w == reached(x->w, conv->pad_w, conv->dilation_w, w->w, conv->v) ? 0 : BAD_PARAM;
}
Status cudnnGetConvolutionForwardAlgorithm_v7(Handle *handle, Tensor *x, Filter *w, Conv *conv, Tensor *y, int wanted,
                                              int *count, Proposal *results) {
    ENTER();
    Status status = check(x, w, conv, y);
    if (status || !handle || wanted < 4) return status ? status : BAD_PARAM;
    // Transforms, one that fails, one that adds in any order, and then one that will do.
    results[0] = (Proposal){.algo = 6, .determinism = 1};
    results[1] = (Proposal){.algo = 0, .status = NOT_SUPPORTED, .determinism = 1};
    results[2] = (Proposal){.algo = 2};
    results[3] = (Proposal){.algo = algorithm, .determinism = 1};
    *count = 4;
    return 0;
}
Status cudnnGetConvolutionForwardWorkspaceSize(Handle *handle, Tensor *x, Filter *w, Conv *conv, Tensor *y, int algo,
                                               size_t *bytes) {
    ENTER();
    *bytes = workspace;
    return algo == algorithm && handle ? check(x, w, conv, y) : NOT_SUPPORTED;
}

static float get(const void *at, int type, int64_t index) {
    if (type == 0) return ((const float *)at)[index];
    uint32_t bits = (uint32_t)((const uint16_t *)at)[index] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static void put(void *at, int type, int64_t index, float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (type == 0) ((float *)at)[index] = value;
    else ((uint16_t *)at)[index] = (uint16_t)(bits >> 16);
}
typedef struct {
    Tensor x, y, z;
    Filter w;
    Conv conv;
    const void *x_at, *w_at, *z_at, *bias;
    void *y_at, *workspace_at;
    size_t workspace;
    float z_share;
    int rectified;
} Call;
static int64_t place(const Tensor *t, int n, int c, int h, int w) {
    return (int64_t)n * t->n_stride + (int64_t)c * t->c_stride + (int64_t)h * t->h_stride + (int64_t)w * t->w_stride;
}
static void run(void *data) {
    const Call *p = data;
    // Two at the same time would be seen by this.
    if (p->workspace) memset(p->workspace_at, 0, p->workspace);
    const Tensor *x = &p->x, *y = &p->y;
    const Filter *w = &p->w;
    for (int n = 0; n < y->n; ++n) for (int k = 0; k < y->c; ++k) for (int i = 0; i < y->h; ++i) for (int j = 0; j < y->w; ++j) {
        float sum = 0;
        for (int r = 0; r < w->h; ++r) for (int s = 0; s < w->w; ++s) {
            int h = i * p->conv.u + r * p->conv.dilation_h - p->conv.pad_h;
            int v = j * p->conv.v + s * p->conv.dilation_w - p->conv.pad_w;
            if (h < 0 || h >= x->h || v < 0 || v >= x->w) continue;
            for (int c = 0; c < x->c; ++c) {
                int64_t weight = (((int64_t)k * w->h + r) * w->w + s) * w->c + c;
                sum += get(p->x_at, x->type, place(x, n, c, h, v)) * get(p->w_at, w->type, weight);
            }
        }
        if (p->z_share) sum += p->z_share * get(p->z_at, y->type, place(&p->z, n, k, i, j));
        if (p->bias) sum += get(p->bias, y->type, k);
        if (p->rectified && sum < 0) sum = 0;
        put(p->y_at, y->type, place(y, n, k, i, j), sum);
    }
}
static Status start(Handle *handle, int algo, Call call) {
    Status status = check(&call.x, &call.w, &call.conv, &call.y);
    if (status) return status;
    if (!handle->stream || algo != algorithm || call.workspace < workspace) return BAD_PARAM;
    Call *kept = malloc(sizeof *kept);
    *kept = call;
    handle->stream->enqueue(handle->stream, "convolution", time_us, run, kept);
    return 0;
}
Status cudnnConvolutionForward(Handle *handle, const float *alpha, Tensor *x, const void *x_at, Filter *w, const void *w_at,
                               Conv *conv, int algo, void *workspace_at, size_t workspace_bytes, const float *beta, Tensor *y,
                               void *y_at) {
    ENTER();
    if (*alpha != 1 || *beta != 0) return BAD_PARAM;
    return start(handle, algo, (Call){*x, *y, *y, *w, *conv, x_at, w_at, 0, 0, y_at, workspace_at, workspace_bytes, 0, 0});
}
Status cudnnConvolutionBiasActivationForward(Handle *handle, const float *alpha, Tensor *x, const void *x_at, Filter *w,
                                             const void *w_at, Conv *conv, int algo, void *workspace_at,
                                             size_t workspace_bytes, const float *share, Tensor *z, const void *z_at,
                                             Tensor *bias, const void *bias_at, Activation *activation, Tensor *y,
                                             void *y_at) {
    ENTER();
    if (*alpha != 1 || !bias_at || bias->c != y->c || bias->n != 1 || bias->h != 1 || bias->w != 1) return BAD_PARAM;
    if (bias->type != y->type || bias->c_stride != 1 || z->type != y->type || z->c != y->c) return BAD_PARAM;
    if (activation->mode != 1 && (activation->mode != 5 || algo != 1)) return NOT_SUPPORTED;
    return start(handle, algo, (Call){*x, *y, *z, *w, *conv, x_at, w_at, z_at, bias_at, y_at, workspace_at,
                                      workspace_bytes, *share, activation->mode == 1});
}
