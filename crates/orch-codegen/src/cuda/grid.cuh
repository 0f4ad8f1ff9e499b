/* CTAs that wait for each other. */
/* Waits for all CTAs of a group of N, of which those before have written what those behind may read. The first CTA of a group adds
   what lets the counter's sign change, and its other bits be 0, when all have arrived. */
template <int N> ORC void o_grid_barrier(int *arrived) {
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned add = blockIdx.x % N == 0 ? 0x80000000u - (N - 1) : 1;
        unsigned before, now;
        asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(arrived), "r"(add) : "memory");
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
        while (((before ^ now) & 0x80000000u) == 0);
    }
    __syncthreads();
}
template <int BYTES> struct relaxed;
template <> struct relaxed<2> {
    ORC void load(void *v, const char *p) { asm volatile("ld.relaxed.gpu.global.b16 %0, [%1];" : "=h"(*(unsigned short *)v) : "l"(p) : "memory"); }
};
template <> struct relaxed<4> {
    ORC void load(void *v, const char *p) { asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(*(unsigned *)v) : "l"(p) : "memory"); }
};
template <> struct relaxed<8> {
    ORC void load(void *v, const char *p) {
        unsigned *w = (unsigned *)v;
        asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(p) : "memory");
    }
};
template <> struct relaxed<16> {
    ORC void load(void *v, const char *p) {
        unsigned *w = (unsigned *)v;
        asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p) : "memory");
    }
};
/* Loads N elements, A at a time, which other CTAs may have written before a grid barrier. */
template <int N, int A, class T> ORC vec<T, N> o_load_relaxed(const T *p) {
    union { vec<T, N> v; unsigned w[(sizeof(T) * N + 3) / 4]; } r;
    ORC_UNROLL for (int i = 0; i < N / A; i++) relaxed<sizeof(T) * A>::load((char *)r.w + i * sizeof(T) * A, (const char *)(p + i * A));
    return r.v;
}
