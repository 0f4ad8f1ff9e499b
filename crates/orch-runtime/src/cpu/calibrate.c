// Kernels that show what a core can do at best. VECTOR_BYTES is defined before this text; AMX where it is there.

#include <stdint.h>

typedef float vec __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t ivec __attribute__((vector_size(VECTOR_BYTES)));

#define BLOCK_BYTES 4096
#define BLOCK_VECTORS (BLOCK_BYTES / VECTOR_BYTES)

// Each task: 1000 steps of 12 independent multiply-adds, enough to hide their latency on two ports. They start from
// different memory, so that the compiler does not find them to be one.
void peak_fma(void *const *buffers, int64_t begin, int64_t end, void *scratch, int64_t before) {
    const vec *in = buffers[0];
    vec x = in[12], y = in[13];
    vec a0 = in[0], a1 = in[1], a2 = in[2], a3 = in[3], a4 = in[4], a5 = in[5];
    vec a6 = in[6], a7 = in[7], a8 = in[8], a9 = in[9], a10 = in[10], a11 = in[11];
    for (int64_t i = 1000 * begin; i < 1000 * end; ++i) {
        a0 = a0 * x + y; a1 = a1 * x + y; a2 = a2 * x + y; a3 = a3 * x + y;
        a4 = a4 * x + y; a5 = a5 * x + y; a6 = a6 * x + y; a7 = a7 * x + y;
        a8 = a8 * x + y; a9 = a9 * x + y; a10 = a10 * x + y; a11 = a11 * x + y;
    }
    *(vec *)scratch = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11;
}

// Each task: reads one block. The working set of `buffers[1]` blocks is gone through again and again.
void read_blocks(void *const *buffers, int64_t begin, int64_t end, void *scratch, int64_t before) {
    const int64_t blocks = *(const int64_t *)buffers[1];
    vec a0 = {0}, a1 = {0}, a2 = {0}, a3 = {0}, a4 = {0}, a5 = {0}, a6 = {0}, a7 = {0};
    for (int64_t task = begin; task < end; ++task) {
        const vec *x = (const vec *)buffers[0] + task % blocks * BLOCK_VECTORS;
        for (int i = 0; i < BLOCK_VECTORS; i += 8) {
            a0 += x[i]; a1 += x[i + 1]; a2 += x[i + 2]; a3 += x[i + 3];
            a4 += x[i + 4]; a5 += x[i + 5]; a6 += x[i + 6]; a7 += x[i + 7];
        }
    }
    *(vec *)scratch = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7;
}

// Each task: writes one block.
void write_blocks(void *const *buffers, int64_t begin, int64_t end, void *scratch, int64_t before) {
    const int64_t blocks = *(const int64_t *)buffers[1];
    vec value = {0};
    for (int64_t task = begin; task < end; ++task) {
        vec *x = (vec *)buffers[0] + task % blocks * BLOCK_VECTORS;
        for (int i = 0; i < BLOCK_VECTORS; ++i) x[i] = value;
    }
}

static inline vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

// Each task: e^x of one block in L1, as kernels compute it: x between the limits of f32, a polynomial of degree 6 on
// [-ln(2)/2, ln(2)/2], and 0 where e^x is below all numbers. Stands for transcendental functions in general.
void exp_block(void *const *buffers, int64_t begin, int64_t end, void *scratch, int64_t before) {
    const vec *in = buffers[0];
    vec *y = scratch;
    const vec zero = {0}, least = zero - 85.0f, most = zero + 89.0f;
    for (int64_t task = begin; task < end; ++task) {
        for (int i = 0; i < BLOCK_VECTORS; ++i) {
            vec x = pick(in[i] < most, in[i], most);
            x = pick(x > least, x, least);
            // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
            vec shifted = x * 1.44269504f + 12582912.0f;
            vec n = shifted - 12582912.0f;
            vec r = x - n * 0.693145752f;
            r = r - n * 1.42860677e-6f;
            vec p = r * 0.00138167f + 0.00836993f;
            p = p * r + 0.0416684f;
            p = p * r + 0.166664f;
            p = p * r + 0.5f;
            p = p * (r * r) + r;
            vec e = (vec)((ivec)(p + 1.0f) + ((ivec)shifted << 23));
            y[i] = pick(in[i] < least, zero, e);
        }
    }
}

// Nothing: what remains is the cost of a step.
void nothing(void *const *buffers, int64_t begin, int64_t end, void *scratch, int64_t before) {}

#ifdef AMX
#include <immintrin.h>

// Each task: 1000 steps of 4 independent products of a 16x32 by a 32x16 bf16 tile.
void peak_amx(void *const *buffers, int64_t begin, int64_t end, void *scratch, int64_t before) {
    struct { uint8_t palette, start_row, reserved[14]; uint16_t columns[16]; uint8_t rows[16]; } config = {1};
    for (int tile = 0; tile < 8; ++tile) { config.columns[tile] = 64; config.rows[tile] = 16; }
    _tile_loadconfig(&config);
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    _tile_loadd(4, buffers[0], 64); _tile_loadd(5, buffers[0], 64);
    _tile_loadd(6, buffers[0], 64); _tile_loadd(7, buffers[0], 64);
    for (int64_t i = 1000 * begin; i < 1000 * end; ++i) {
        _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, scratch, 64);
    _tile_release();
}
#endif
