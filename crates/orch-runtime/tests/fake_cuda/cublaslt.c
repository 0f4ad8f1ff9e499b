// A cuBLASLt without a device, for tests: it multiplies in the host's memory what streams of the fake driver (driver.c) are
// given, matrix by matrix as the header says: column by column, transposed as told, with C, and with a bias for each row. Types are
// f32 and, for factors and results, f16 that is read and written as the upper half of f32. A product takes 3 microseconds.
// It is steered by the environment variable FAKE_CUBLASLT, or by `fake_set`: `version N`; `time N`, microseconds of a
// product; `status FUNCTION N`, what a function returns from then on; and by the latter alone `workspace N`, bytes that
// products need.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>

typedef int Status;
typedef struct { int32_t compute, scale, transpose_a, transpose_b; uint32_t epilogue; const void *bias; } Desc;
typedef struct { int type; uint64_t rows, cols; int64_t lead; int32_t batches; int64_t batch_stride; } Layout;
typedef struct { uint64_t max_workspace; uint32_t reduction, alignment[4]; } Preference;
typedef struct { uint64_t data[8]; } Algorithm;
typedef struct { Algorithm algorithm; size_t workspace; Status state; float waves; int reserved[4]; } Heuristic;

static size_t version = 130100;
static uint64_t workspace;
static double time_us = 3;
static struct { char function[64]; Status status; } failures[8];
static int failure_count;

void fake_set(const char *key, const char *function, long long value) {
    if (!strcmp(key, "version")) version = (size_t)value;
    else if (!strcmp(key, "time")) time_us = (double)value;
    else if (!strcmp(key, "workspace")) workspace = (uint64_t)value;
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

size_t cublasLtGetVersion(void) {
    const char *steps = getenv("FAKE_CUBLASLT");
    char function[64];
    long long value;
    if (steps && sscanf(steps, "version %lld", &value) == 1) fake_set("version", "", value);
    if (steps && sscanf(steps, "time %lld", &value) == 1) fake_set("time", "", value);
    if (steps && sscanf(steps, "status %63s %lld", function, &value) == 2) fake_set("status", function, value);
    return version;
}
Status cublasLtCreate(void **handle) { ENTER(); *handle = calloc(1, 64); return 0; }
Status cublasLtDestroy(void *handle) { free(handle); return 0; }

Status cublasLtMatmulDescCreate(Desc **made, int compute, int scale) {
    ENTER();
    *made = calloc(1, sizeof(Desc));
    (*made)->compute = compute;
    (*made)->scale = scale;
    (*made)->epilogue = 1;
    return 0;
}
Status cublasLtMatmulDescDestroy(Desc *desc) { free(desc); return 0; }
// An attribute takes a value of its own size only.
static Status take(void *to, size_t size, const void *value, size_t given) {
    if (given != size) return 7;
    memcpy(to, value, size);
    return 0;
}
Status cublasLtMatmulDescSetAttribute(Desc *desc, int attribute, const void *value, size_t size) {
    ENTER();
    switch (attribute) {
        case 3: return take(&desc->transpose_a, 4, value, size);
        case 4: return take(&desc->transpose_b, 4, value, size);
        case 7: return take(&desc->epilogue, 4, value, size);
        case 8: return take(&desc->bias, 8, value, size);
    }
    return 7;
}
Status cublasLtMatrixLayoutCreate(Layout **made, int type, uint64_t rows, uint64_t cols, int64_t lead) {
    ENTER();
    *made = calloc(1, sizeof(Layout));
    **made = (Layout){type, rows, cols, lead, 1, 0};
    return 0;
}
Status cublasLtMatrixLayoutDestroy(Layout *layout) { free(layout); return 0; }
Status cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t size) {
    ENTER();
    switch (attribute) {
        case 5: return take(&layout->batches, 4, value, size);
        case 6: return take(&layout->batch_stride, 8, value, size);
    }
    return 7;
}
Status cublasLtMatmulPreferenceCreate(Preference **made) { ENTER(); *made = calloc(1, sizeof(Preference)); return 0; }
Status cublasLtMatmulPreferenceDestroy(Preference *preference) { free(preference); return 0; }
Status cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t size) {
    ENTER();
    switch (attribute) {
        case 1: return take(&preference->max_workspace, 8, value, size);
        case 3: return take(&preference->reduction, 4, value, size);
        case 5: case 6: case 7: case 8: return take(&preference->alignment[attribute - 5], 4, value, size);
    }
    return 7;
}

static uint64_t extent(const Layout *layout, int transposed, int columns) {
    return transposed == columns ? layout->rows : layout->cols;
}
// What the header says of sizes and types that belong together.
static Status check(const Desc *desc, const Layout *a, const Layout *b, const Layout *c, const Layout *d) {
    const Layout *all[] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) {
        if (all[i]->lead < (int64_t)all[i]->rows || all[i]->batches != d->batches) return 7;
        if (all[i]->type != 0 && all[i]->type != 2) return 15;
    }
    if (extent(a, desc->transpose_a, 0) != d->rows || extent(b, desc->transpose_b, 1) != d->cols) return 7;
    if (c->rows != d->rows || c->cols != d->cols) return 7;
    if (extent(a, desc->transpose_a, 1) != extent(b, desc->transpose_b, 0)) return 7;
    if (a->type != b->type || c->type != d->type || desc->scale != 0) return 7;
    if (desc->compute != 68 && (desc->compute != 77 || a->type != 0)) return 15;
    if ((desc->epilogue != 1 && desc->epilogue != 4) || (desc->epilogue == 4 && !desc->bias)) return 7;
    return 0;
}
Status cublasLtMatmulAlgoGetHeuristic(void *handle, Desc *desc, Layout *a, Layout *b, Layout *c, Layout *d,
                                      Preference *preference, int wanted, Heuristic *results, int *count) {
    ENTER();
    (void)handle;
    Status status = check(desc, a, b, c, d);
    if (status || wanted != 1 || preference->reduction != 2) return status ? status : 7;
    for (int i = 0; i < 4; ++i) if (!preference->alignment[i] || preference->alignment[i] > 256) return 7;
    *count = 1;
    memset(results, 0, sizeof *results);
    results->algorithm.data[0] = 42;
    results->workspace = workspace;
    results->state = workspace > preference->max_workspace ? 15 : 0;
    return 0;
}

static float get(const void *at, const Layout *layout, int64_t index) {
    if (layout->type == 0) return ((const float *)at)[index];
    uint32_t bits = (uint32_t)((const uint16_t *)at)[index] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static void put(void *at, const Layout *layout, int64_t index, float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (layout->type == 0) ((float *)at)[index] = value;
    else ((uint16_t *)at)[index] = (uint16_t)(bits >> 16);
}
typedef struct {
    Desc desc;
    Layout a, b, c, d;
    const void *a_at, *b_at, *c_at;
    void *d_at, *workspace_at;
    size_t workspace;
    float alpha, beta;
} Product;
static void run(void *data) {
    const Product *p = data;
    // Two at the same time would be seen by this.
    if (p->workspace) memset(p->workspace_at, 0, p->workspace);
    int ta = p->desc.transpose_a, tb = p->desc.transpose_b;
    int64_t terms = (int64_t)extent(&p->a, ta, 1);
    for (int64_t z = 0; z < p->d.batches; ++z)
        for (int64_t i = 0; i < (int64_t)p->d.rows; ++i)
            for (int64_t j = 0; j < (int64_t)p->d.cols; ++j) {
                float sum = 0;
                for (int64_t t = 0; t < terms; ++t) {
                    int64_t in_a = ta ? t + i * p->a.lead : i + t * p->a.lead;
                    int64_t in_b = tb ? j + t * p->b.lead : t + j * p->b.lead;
                    sum += get(p->a_at, &p->a, z * p->a.batch_stride + in_a)
                         * get(p->b_at, &p->b, z * p->b.batch_stride + in_b);
                }
                sum *= p->alpha;
                if (p->beta) sum += p->beta * get(p->c_at, &p->c, z * p->c.batch_stride + i + j * p->c.lead);
                if (p->desc.epilogue == 4) sum += get(p->desc.bias, &p->d, i);
                put(p->d_at, &p->d, z * p->d.batch_stride + i + j * p->d.lead, sum);
            }
}
typedef struct Stream { void (*enqueue)(struct Stream *, const char *, double, void (*)(void *), void *); } Stream;
Status cublasLtMatmul(void *handle, Desc *desc, const float *alpha, const void *a_at, Layout *a, const void *b_at, Layout *b,
                      const float *beta, const void *c_at, Layout *c, void *d_at, Layout *d, const Algorithm *algorithm,
                      void *workspace_at, size_t workspace_bytes, Stream *stream) {
    ENTER();
    Status status = check(desc, a, b, c, d);
    if (status) return status;
    if (!handle || !stream || algorithm->data[0] != 42 || workspace_bytes < workspace) return 7;
    Product *product = malloc(sizeof *product);
    *product = (Product){*desc, *a, *b, *c, *d, a_at, b_at, c_at, d_at, workspace_at, workspace_bytes, *alpha, *beta};
    stream->enqueue(stream, "product", time_us, run, product);
    return 0;
}
