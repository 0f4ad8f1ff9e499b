#pragma nv_diag_suppress 177
#define ORC static __device__ __forceinline__
#define ORC_UNROLL _Pragma("unroll")

/* Elements of 16 bits are only stored; arithmetic on them is done in float. */
struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };

template <class T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) vec { T v[N]; };

/* The type in which arithmetic on T is done, and conversions from and to it. */
template <class T> ORC T wide(T a) { return a; }
ORC float wide(f16 a) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(a.bits)); return r; }
ORC float wide(bf16 a) { return __uint_as_float((unsigned)a.bits << 16); }
template <class T> struct narrow { template <class S> ORC T of(S a) { return (T)a; } };
template <> struct narrow<f16> {
    ORC f16 of(float a) { f16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(a)); return r; }
    ORC f16 of(double a) { f16 r; asm("cvt.rn.f16.f64 %0, %1;" : "=h"(r.bits) : "d"(a)); return r; }
};
template <> struct narrow<bf16> {
    ORC bf16 of(float a) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(a)); return r; }
    ORC bf16 of(double a) { return of((float)a); }
};
ORC f16 f16_bits(unsigned short bits) { f16 r; r.bits = bits; return r; }
ORC bf16 bf16_bits(unsigned short bits) { bf16 r; r.bits = bits; return r; }

template <class T> struct kind { static const bool is_float = false; };
template <> struct kind<f16> { static const bool is_float = true; };
template <> struct kind<bf16> { static const bool is_float = true; };
template <> struct kind<float> { static const bool is_float = true; };
template <> struct kind<double> { static const bool is_float = true; };
template <class T> struct bits_of;
template <> struct bits_of<bool> { typedef bool type; };
template <> struct bits_of<signed char> { typedef unsigned type; };
template <> struct bits_of<unsigned char> { typedef unsigned type; };
template <> struct bits_of<short> { typedef unsigned type; };
template <> struct bits_of<unsigned short> { typedef unsigned type; };
template <> struct bits_of<int> { typedef unsigned type; };
template <> struct bits_of<unsigned> { typedef unsigned type; };
template <> struct bits_of<long long> { typedef unsigned long long type; };
template <> struct bits_of<unsigned long long> { typedef unsigned long long type; };

/* Conversions: floats to integers truncate and saturate, integers wrap. */
template <class T> struct to {
    template <class S> ORC T of(S a) { return (T)a; }
    ORC T of(float a) { return saturated((double)a); }
    ORC T of(double a) { return saturated(a); }
    ORC T of(f16 a) { return of(wide(a)); }
    ORC T of(bf16 a) { return of(wide(a)); }
    ORC T saturated(double a) {
        const double low = (T)-1 < (T)0 ? -(double)(1ull << (8 * sizeof(T) - 1)) : 0.0;
        const double high = (double)((T)-1 < (T)0 ? (1ull << (8 * sizeof(T) - 1)) - 1 : ~0ull >> (64 - 8 * sizeof(T)));
        return sizeof(T) == 8 ? (T)a : a != a ? (T)0 : (T)fmin(fmax(a, low), high);
    }
};
template <> struct to<int> {
    template <class S> ORC int of(S a) { return (int)wide(a); }
};
template <> struct to<bool> { template <class S> ORC bool of(S a) { return wide(a) != 0; } };
template <> struct to<float> { template <class S> ORC float of(S a) { return (float)wide(a); } };
template <> struct to<double> { template <class S> ORC double of(S a) { return (double)wide(a); } };
template <> struct to<f16> {
    ORC f16 of(f16 a) { return a; }
    ORC f16 of(float a) { return narrow<f16>::of(a); }
    ORC f16 of(bf16 a) { return narrow<f16>::of(wide(a)); }
    template <class S> ORC f16 of(S a) { return narrow<f16>::of((double)a); }
};
template <> struct to<bf16> {
    ORC bf16 of(bf16 a) { return a; }
    ORC bf16 of(float a) { return narrow<bf16>::of(a); }
    ORC bf16 of(f16 a) { return narrow<bf16>::of(wide(a)); }
    template <class S> ORC bf16 of(S a) { return narrow<bf16>::of((double)a); }
};

/* What the hardware approximates, to about 2^-22: subnormal operands and results are zero then. */
#ifdef ORC_APPROXIMATE
ORC float power_of_2(float a) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a)); return r; }
ORC float power_of_e(float a) { return power_of_2(a * 1.4426950408889634f); }
/* Where many differ in a only, as in a softmax, the product of b is shared. */
ORC float power_of_e(float a, float b) { return power_of_2(__fmaf_rn(a, 1.4426950408889634f, -1.4426950408889634f * b)); }
ORC float root(float a) { float r; asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a)); return r; }
ORC float quotient(float a, float b) { float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b)); return a * r; }
#else
ORC float power_of_e(float a) { return expf(a); }
ORC float power_of_e(float a, float b) { return expf(a - b); }
ORC float root(float a) { return sqrtf(a); }
ORC float quotient(float a, float b) { return a / b; }
#endif

/* Functions of floats. */
#define ORC_FLOAT1(name, f, d) \
    ORC float name##_(float a) { return f; } \
    ORC double name##_(double a) { return d; } \
    template <class T> ORC T name(T a) { return narrow<T>::of(name##_(wide(a))); }
ORC_FLOAT1(o_ceil, ceilf(a), ceil(a))
ORC_FLOAT1(o_floor, floorf(a), floor(a))
ORC_FLOAT1(o_round_even, rintf(a), rint(a))
ORC_FLOAT1(o_trunc, truncf(a), trunc(a))
ORC_FLOAT1(o_sqrt, root(a), sqrt(a))
ORC_FLOAT1(o_recip, quotient(1.0f, a), 1.0 / a)
ORC_FLOAT1(o_exp, power_of_e(a), exp(a))
ORC float o_exp_less(float a, float b) { return power_of_e(a, b); }
ORC_FLOAT1(o_expm1, expm1f(a), expm1(a))
ORC_FLOAT1(o_log, logf(a), log(a))
ORC_FLOAT1(o_log1p, log1pf(a), log1p(a))
ORC_FLOAT1(o_sin, sinf(a), sin(a))
ORC_FLOAT1(o_cos, cosf(a), cos(a))
ORC_FLOAT1(o_tan, tanf(a), tan(a))
ORC_FLOAT1(o_asin, asinf(a), asin(a))
ORC_FLOAT1(o_acos, acosf(a), acos(a))
ORC_FLOAT1(o_atan, atanf(a), atan(a))
ORC_FLOAT1(o_sinh, sinhf(a), sinh(a))
ORC_FLOAT1(o_cosh, coshf(a), cosh(a))
ORC_FLOAT1(o_tanh, tanhf(a), tanh(a))
ORC_FLOAT1(o_asinh, asinhf(a), asinh(a))
ORC_FLOAT1(o_acosh, acoshf(a), acosh(a))
ORC_FLOAT1(o_atanh, atanhf(a), atanh(a))
ORC_FLOAT1(o_erf, erff(a), erf(a))

/* Functions of numbers: integers wrap, division by zero gives 0. */
template <bool IsFloat> struct arithmetic {
    template <class T> ORC T neg(T a) { return (T)(0 - (typename bits_of<T>::type)a); }
    template <class T> ORC T abs(T a) { return a < (T)0 ? neg(a) : a; }
    template <class T> ORC T sign(T a) { return (T)((a > (T)0) - (a < (T)0)); }
    template <class T> ORC T add(T a, T b) { return (T)((typename bits_of<T>::type)a + (typename bits_of<T>::type)b); }
    template <class T> ORC T sub(T a, T b) { return (T)((typename bits_of<T>::type)a - (typename bits_of<T>::type)b); }
    template <class T> ORC T mul(T a, T b) { return (T)((typename bits_of<T>::type)a * (typename bits_of<T>::type)b); }
    template <class T> ORC T div(T a, T b) { return b == 0 ? (T)0 : b == (T)-1 && (T)-1 < (T)0 ? neg(a) : (T)(a / b); }
    template <class T> ORC T trunc_mod(T a, T b) { return sub(a, mul(div(a, b), b)) * (T)(b != 0); }
    template <class T> ORC T floor_mod(T a, T b) {
        T r = trunc_mod(a, b);
        return r != 0 && (r < 0) != (b < 0) ? add(r, b) : r;
    }
    template <class T> ORC T pow(T a, T b) {
        if (a == 1) return 1;
        if (a == (T)-1 && (T)-1 < (T)0) return b & 1 ? a : (T)1;
        if (b < 0) return 0;
        T r = 1;
        for (; b > 0; b >>= 1, a = mul(a, a)) if (b & 1) r = mul(r, a);
        return r;
    }
    template <class T> ORC T max(T a, T b) { return a >= b ? a : b; }
    template <class T> ORC T min(T a, T b) { return a <= b ? a : b; }
    template <class T> ORC T fma(T a, T b, T c) { return add(mul(a, b), c); }
};
template <> struct arithmetic<true> {
    template <class T> ORC T neg(T a) { return -a; }
    ORC float abs(float a) { return fabsf(a); }
    ORC double abs(double a) { return fabs(a); }
    template <class T> ORC T sign(T a) { return a > 0 ? (T)1 : a < 0 ? (T)-1 : a; }
    template <class T> ORC T add(T a, T b) { return a + b; }
    template <class T> ORC T sub(T a, T b) { return a - b; }
    template <class T> ORC T mul(T a, T b) { return a * b; }
    ORC float div(float a, float b) { return quotient(a, b); }
    ORC double div(double a, double b) { return a / b; }
    ORC float trunc_mod(float a, float b) { return fmodf(a, b); }
    ORC double trunc_mod(double a, double b) { return fmod(a, b); }
    template <class T> ORC T floor_mod(T a, T b) {
        T r = trunc_mod(a, b);
        return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    ORC float pow(float a, float b) { return powf(a, b); }
    ORC double pow(double a, double b) { return ::pow(a, b); }
    ORC float max(float a, float b) { float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
    ORC float min(float a, float b) { float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
    ORC double max(double a, double b) { return a != a || a >= b ? a : b; }
    ORC double min(double a, double b) { return a != a || a <= b ? a : b; }
    ORC float atan2(float a, float b) { return atan2f(a, b); }
    ORC double atan2(double a, double b) { return ::atan2(a, b); }
    ORC float fma(float a, float b, float c) { return fmaf(a, b, c); }
    ORC double fma(double a, double b, double c) { return ::fma(a, b, c); }
};
#define ORC_NUMBER1(f) template <class T> ORC T o_##f(T a) { return narrow<T>::of(arithmetic<kind<T>::is_float>::f(wide(a))); }
#define ORC_NUMBER2(f) \
    template <class T> ORC T o_##f(T a, T b) { return narrow<T>::of(arithmetic<kind<T>::is_float>::f(wide(a), wide(b))); }
ORC_NUMBER1(neg)
ORC_NUMBER1(abs)
ORC_NUMBER1(sign)
ORC_NUMBER2(add)
ORC_NUMBER2(sub)
ORC_NUMBER2(mul)
ORC_NUMBER2(div)
ORC_NUMBER2(floor_mod)
ORC_NUMBER2(trunc_mod)
ORC_NUMBER2(pow)
ORC_NUMBER2(max)
ORC_NUMBER2(min)
ORC_NUMBER2(atan2)
template <class T> ORC T o_fma(T a, T b, T c) {
    return narrow<T>::of(arithmetic<kind<T>::is_float>::fma(wide(a), wide(b), wide(c)));
}
ORC bool o_not(bool a) { return !a; }
template <class T> ORC T o_not(T a) { return (T)~a; }
template <class T> ORC T o_and(T a, T b) { return (T)(a & b); }
template <class T> ORC T o_or(T a, T b) { return (T)(a | b); }
template <class T> ORC T o_xor(T a, T b) { return (T)(a ^ b); }
template <class T> ORC T o_shl(T a, T b) {
    return b < 0 || b >= (T)(8 * sizeof(T)) ? (T)0 : (T)((typename bits_of<T>::type)a << b);
}
template <class T> ORC T o_shr(T a, T b) {
    return b < 0 || b >= (T)(8 * sizeof(T)) ? (T)(a < 0 ? -1 : 0) : (T)(a >> b);
}
/* 64 bits of Philox4x32-10. */
ORC unsigned long long o_philox(unsigned long long at, unsigned long long key) {
    unsigned c0 = (unsigned)at, c1 = (unsigned)(at >> 32), c2 = 0, c3 = 0, k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
    ORC_UNROLL for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        unsigned h0 = __umulhi(c0, 0xd2511f53u), l0 = c0 * 0xd2511f53u, h2 = __umulhi(c2, 0xcd9e8d57u), l2 = c2 * 0xcd9e8d57u;
        c0 = h2 ^ c1 ^ k0, c1 = l2, c2 = h0 ^ c3 ^ k1, c3 = l0;
    }
    return c0 | (unsigned long long)c1 << 32;
}
template <class T> ORC T o_floor_div(T a, T b) { T q = a / b; return a % b != 0 && a < 0 ? q - 1 : q; }
template <class T> ORC T o_floor_rem(T a, T b) { T r = a % b; return r < 0 ? r + b : r; }
#define ORC_COMPARE(name, op) template <class T> ORC bool o_##name(T a, T b) { return wide(a) op wide(b); }
ORC_COMPARE(eq, ==)
ORC_COMPARE(ne, !=)
ORC_COMPARE(lt, <)
ORC_COMPARE(le, <=)
ORC_COMPARE(gt, >)
ORC_COMPARE(ge, >=)
template <class T> ORC bool o_is_nan(T a) { return wide(a) != wide(a); }
ORC bool is_inf_(float a) { return fabsf(a) == __int_as_float(0x7f800000); }
ORC bool is_inf_(double a) { return fabs(a) == __longlong_as_double(0x7ff0000000000000ll); }
template <class T> ORC bool o_is_inf(T a) { return is_inf_(wide(a)); }
template <class T> ORC T o_select(bool c, T a, T b) { return c ? a : b; }

/* The same, lane by lane. */
#define ORC_LANES1(f) \
    template <class A, int N> ORC auto f(vec<A, N> a) { \
        vec<decltype(f(a.v[0])), N> r; \
        ORC_UNROLL for (int i = 0; i < N; i++) r.v[i] = f(a.v[i]); \
        return r; \
    }
#define ORC_LANES2(f) \
    template <class A, int N> ORC auto f(vec<A, N> a, vec<A, N> b) { \
        vec<decltype(f(a.v[0], b.v[0])), N> r; \
        ORC_UNROLL for (int i = 0; i < N; i++) r.v[i] = f(a.v[i], b.v[i]); \
        return r; \
    }
ORC_LANES1(o_ceil) ORC_LANES1(o_floor) ORC_LANES1(o_round_even) ORC_LANES1(o_trunc) ORC_LANES1(o_sqrt)
ORC_LANES1(o_recip) ORC_LANES1(o_exp) ORC_LANES1(o_expm1) ORC_LANES1(o_log) ORC_LANES1(o_log1p) ORC_LANES1(o_sin)
ORC_LANES1(o_cos) ORC_LANES1(o_tan) ORC_LANES1(o_asin) ORC_LANES1(o_acos) ORC_LANES1(o_atan) ORC_LANES1(o_sinh)
ORC_LANES1(o_cosh) ORC_LANES1(o_tanh) ORC_LANES1(o_asinh) ORC_LANES1(o_acosh) ORC_LANES1(o_atanh) ORC_LANES1(o_erf)
ORC_LANES1(o_neg) ORC_LANES1(o_abs) ORC_LANES1(o_sign) ORC_LANES1(o_not) ORC_LANES1(o_is_nan) ORC_LANES1(o_is_inf)
ORC_LANES2(o_add) ORC_LANES2(o_sub) ORC_LANES2(o_mul) ORC_LANES2(o_div) ORC_LANES2(o_floor_mod) ORC_LANES2(o_trunc_mod)
ORC_LANES2(o_pow) ORC_LANES2(o_max) ORC_LANES2(o_min) ORC_LANES2(o_atan2) ORC_LANES2(o_philox) ORC_LANES2(o_and) ORC_LANES2(o_or)
ORC_LANES2(o_xor) ORC_LANES2(o_shl) ORC_LANES2(o_shr) ORC_LANES2(o_floor_div) ORC_LANES2(o_floor_rem) ORC_LANES2(o_eq)
ORC_LANES2(o_ne) ORC_LANES2(o_lt) ORC_LANES2(o_le) ORC_LANES2(o_gt) ORC_LANES2(o_ge)
template <class T, int N> ORC vec<T, N> o_fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
    vec<T, N> r;
    ORC_UNROLL for (int i = 0; i < N; i++) r.v[i] = o_fma(a.v[i], b.v[i], c.v[i]);
    return r;
}
template <class T, int N> ORC vec<T, N> o_select(vec<bool, N> c, vec<T, N> a, vec<T, N> b) {
    vec<T, N> r;
    ORC_UNROLL for (int i = 0; i < N; i++) r.v[i] = c.v[i] ? a.v[i] : b.v[i];
    return r;
}
template <class T, class S> ORC T o_cast(S a) { return to<T>::of(a); }
template <class T, class S, int N> ORC vec<T, N> o_cast(vec<S, N> a) {
    vec<T, N> r;
    ORC_UNROLL for (int i = 0; i < N; i++) r.v[i] = to<T>::of(a.v[i]);
    return r;
}
template <int N, class T> ORC vec<T, N> o_splat(T a) {
    vec<T, N> r;
    ORC_UNROLL for (int i = 0; i < N; i++) r.v[i] = a;
    return r;
}
template <int N, class T, class S> ORC vec<T, N> o_ramp(T base, S stride) {
    vec<T, N> r;
    ORC_UNROLL for (int i = 0; i < N; i++) r.v[i] = base + stride * i;
    return r;
}
// Groups of G lanes by turns.
template <int G = 1, class T, int N> ORC vec<T, 2 * N> o_interleave(vec<T, N> a, vec<T, N> b) {
    vec<T, 2 * N> r;
    ORC_UNROLL for (int i = 0; i < N; i++) { r.v[2 * i - i % G] = a.v[i]; r.v[2 * i - i % G + G] = b.v[i]; }
    return r;
}
template <class T> ORC vec<T, 2> o_interleave(T a, T b) {
    vec<T, 2> r;
    r.v[0] = a;
    r.v[1] = b;
    return r;
}
// Half of a vector's lanes.
template <class T, int N> ORC vec<T, N / 2> o_part(vec<T, N> a, int first) {
    vec<T, N / 2> r;
    ORC_UNROLL for (int i = 0; i < N / 2; i++) r.v[i] = a.v[first + i];
    return r;
}
template <class T, int N> ORC auto o_low(vec<T, N> a) { return o_part(a, 0); }
template <class T, int N> ORC auto o_high(vec<T, N> a) { return o_part(a, N / 2); }
template <class T> ORC T o_low(vec<T, 2> a) { return a.v[0]; }
template <class T> ORC T o_high(vec<T, 2> a) { return a.v[1]; }
#define ORC_REDUCE(name, f) \
    template <class T, int N> ORC T name(vec<T, N> a) { \
        ORC_UNROLL for (int n = N / 2; n > 0; n /= 2) ORC_UNROLL for (int i = 0; i < n; i++) a.v[i] = f(a.v[i], a.v[i + n]); \
        return a.v[0]; \
    }
ORC_REDUCE(o_lanes_sum, o_add)
ORC_REDUCE(o_lanes_prod, o_mul)
ORC_REDUCE(o_lanes_max, o_max)
ORC_REDUCE(o_lanes_min, o_min)
ORC_REDUCE(o_lanes_or, o_or)
ORC_REDUCE(o_lanes_and, o_and)

/* Memory: N elements in accesses of A elements, to which the address is aligned. */
template <int BYTES> struct access;
template <> struct access<1> { typedef unsigned char type; };
template <> struct access<2> { typedef unsigned short type; };
template <> struct access<4> { typedef unsigned type; };
template <> struct access<8> { typedef uint2 type; };
template <> struct access<16> { typedef uint4 type; };
template <class T, int N, int A> union access_union {
    vec<T, N> v;
    typename access<sizeof(T) * A>::type w[N / A];
};
template <int N, int A, class T> ORC vec<T, N> o_load(const T *p) {
    typedef typename access<sizeof(T) * A>::type W;
    access_union<T, N, A> r;
    ORC_UNROLL for (int i = 0; i < N / A; i++) r.w[i] = ((const W *)p)[i];
    return r.v;
}
/* Evict-first loads, of data that is read once: L2 rather keeps what other kernels wrote. */
ORC unsigned long long o_evict_first_policy() {
    unsigned long long r;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(r));
    return r;
}
template <int N, int A, class T> ORC vec<T, N> o_load_evict_first(const T *p) {
    typedef typename access<sizeof(T) * A>::type W;
    access_union<T, N, A> r;
    ORC_UNROLL for (int i = 0; i < N / A; i++) r.w[i] = __ldcs((const W *)p + i);
    return r.v;
}
/* Hides from the compiler where a pointer comes from. A kernel of a programmatic dependent launch starts while its inputs are
   being written: loads must not move before griddepcontrol.wait, nor become non-coherent (qualifier `nc`), which may return stale data. */
template <class T> ORC T *o_after_grid_wait(T *p) {
    unsigned long long at = __cvta_generic_to_global(p);
    asm volatile("" : "+l"(at)::"memory");
    return (T *)__cvta_global_to_generic(at);
}
template <int N, int A, class T> ORC void o_store(T *p, vec<T, N> v) {
    typedef typename access<sizeof(T) * A>::type W;
    access_union<T, N, A> r;
    r.v = v;
    ORC_UNROLL for (int i = 0; i < N / A; i++) ((W *)p)[i] = r.w[i];
}
template <class T> ORC T o_zero() { T r; memset(&r, 0, sizeof r); return r; }
template <int N> ORC bool o_all(vec<bool, N> m) {
    bool r = true;
    ORC_UNROLL for (int i = 0; i < N; i++) r = r && m.v[i];
    return r;
}
template <int N, int A, class T> ORC vec<T, N> o_load_masked(const T *p, vec<bool, N> m) {
    if (o_all(m)) return o_load<N, A>(p);
    vec<T, N> r;
    ORC_UNROLL for (int i = 0; i < N; i++) r.v[i] = m.v[i] ? p[i] : o_zero<T>();
    return r;
}
template <int N, int A, class T> ORC void o_store_masked(T *p, vec<T, N> v, vec<bool, N> m) {
    if (o_all(m)) return o_store<N, A>(p, v);
    ORC_UNROLL for (int i = 0; i < N; i++) if (m.v[i]) p[i] = v.v[i];
}
template <int N, class T, class I> ORC vec<T, N> o_gather(const T *p, vec<I, N> at) {
    vec<T, N> r;
    ORC_UNROLL for (int i = 0; i < N; i++) r.v[i] = p[at.v[i]];
    return r;
}
template <int N, class T, class I> ORC vec<T, N> o_gather_masked(const T *p, vec<I, N> at, vec<bool, N> m) {
    vec<T, N> r;
    ORC_UNROLL for (int i = 0; i < N; i++) r.v[i] = m.v[i] ? p[at.v[i]] : o_zero<T>();
    return r;
}
template <int N, class T, class I> ORC void o_scatter(T *p, vec<I, N> at, vec<T, N> v) {
    ORC_UNROLL for (int i = 0; i < N; i++) p[at.v[i]] = v.v[i];
}
template <int N, class T, class I> ORC void o_scatter_masked(T *p, vec<I, N> at, vec<T, N> v, vec<bool, N> m) {
    ORC_UNROLL for (int i = 0; i < N; i++) if (m.v[i]) p[at.v[i]] = v.v[i];
}
template <int N, class T> ORC vec<T, N> o_load_local(const T *p) {
    vec<T, N> r;
    ORC_UNROLL for (int i = 0; i < N; i++) r.v[i] = p[i];
    return r;
}
template <int N, class T> ORC void o_store_local(T *p, vec<T, N> v) {
    ORC_UNROLL for (int i = 0; i < N; i++) p[i] = v.v[i];
}

/* CTAs, clusters, shared memory, matrix instructions. */
ORC unsigned o_shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
ORC void o_cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/* Tells the other CTAs of the cluster that this one runs; waits until all have told so. */
ORC void o_cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
ORC void o_cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
template <class T> ORC T o_shfl_xor_(T a, int with) { return __shfl_xor_sync(0xffffffffu, a, with); }
ORC f16 o_shfl_xor_(f16 a, int with) { return f16_bits((unsigned short)__shfl_xor_sync(0xffffffffu, (unsigned)a.bits, with)); }
ORC bf16 o_shfl_xor_(bf16 a, int with) { return bf16_bits((unsigned short)__shfl_xor_sync(0xffffffffu, (unsigned)a.bits, with)); }
ORC bool o_shfl_xor_(bool a, int with) { return __shfl_xor_sync(0xffffffffu, (int)a, with) != 0; }
template <class T> ORC T o_shfl_xor(T a, int with) { return o_shfl_xor_(a, with); }
template <class T, int N> ORC vec<T, N> o_shfl_xor(vec<T, N> a, int with) {
    ORC_UNROLL for (int i = 0; i < N; i++) a.v[i] = o_shfl_xor_(a.v[i], with);
    return a;
}
/* Whether, in any lane of the warp, one of COUNT accumulators of 16 x 8 mma tiles is above the limit of its row, or a limit is
   negative. Floats without a sign compare as integers do, three at once. */
template <int COUNT> ORC bool o_any_exceeds(const float *accs, const float *limits) {
    const int low = __float_as_int(limits[0]), high = __float_as_int(limits[1]);
    int a = low, b = high;
    ORC_UNROLL for (int i = 0; i < COUNT; i += 4) {
        a = __vimax3_s32(a, __float_as_int(accs[i]), __float_as_int(accs[i + 1]));
        b = __vimax3_s32(b, __float_as_int(accs[i + 2]), __float_as_int(accs[i + 3]));
    }
    return __any_sync(0xffffffffu, a != low || b != high || (low | high) < 0);
}
/* True for one lane of a full warp; unlike a comparison with 0 it tells the compiler that it is a single lane. */
ORC bool o_elect_one() {
    unsigned r;
    asm volatile("{\n.reg .pred q;\nelect.sync _|q, 0xffffffff;\nselp.u32 %0, 1, 0, q;\n}" : "=r"(r));
    return r != 0;
}
/* DSMEM: N elements of the shared memory of another CTA of the cluster, in accesses of A elements. */
template <int BYTES> struct dsmem;
template <> struct dsmem<4> {
    ORC void load(unsigned *w, unsigned p) { asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(w[0]) : "r"(p) : "memory"); }
    ORC void store(unsigned p, const unsigned *w) { asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(p), "r"(w[0]) : "memory"); }
};
template <> struct dsmem<8> {
    ORC void load(unsigned *w, unsigned p) { asm volatile("ld.shared::cluster.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(p) : "memory"); }
    ORC void store(unsigned p, const unsigned *w) { asm volatile("st.shared::cluster.v2.b32 [%0], {%1, %2};" ::"r"(p), "r"(w[0]), "r"(w[1]) : "memory"); }
};
template <> struct dsmem<16> {
    ORC void load(unsigned *w, unsigned p) { asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(p) : "memory"); }
    ORC void store(unsigned p, const unsigned *w) { asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory"); }
};
template <int N, int A, class T> ORC vec<T, N> o_load_dsmem(const T *p, int rank) {
    union { vec<T, N> v; unsigned w[sizeof(T) * N / 4]; } r;
    unsigned at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(o_shared_address(p)), "r"(rank));
    const int bytes = sizeof(T) * A;
    ORC_UNROLL for (int i = 0; i < N / A; i++) dsmem<bytes>::load(r.w + i * bytes / 4, at + i * bytes);
    return r.v;
}
template <int A, int N, class T> ORC void o_store_dsmem(const T *p, int offset, int rank, vec<T, N> v) {
    union { vec<T, N> v; unsigned w[sizeof(T) * N / 4]; } r = {v};
    unsigned at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(o_shared_address(p)), "r"(rank));
    at += offset * (int)sizeof(T);
    const int bytes = sizeof(T) * A;
    ORC_UNROLL for (int i = 0; i < N / A; i++) dsmem<bytes>::store(at + i * bytes, r.w + i * bytes / 4);
}
template <int A, class T> ORC void o_store_dsmem(const T *p, int offset, int rank, T v) { o_store_dsmem<A, 1, T>(p, offset, rank, vec<T, 1>{{v}}); }
/* Reductions in shared memory. */
ORC void o_red_add(const int *p, int v) { asm volatile("red.shared.add.s32 [%0], %1;" ::"r"(o_shared_address(p)), "r"(v) : "memory"); }
ORC void o_red_min(const int *p, int v) { asm volatile("red.shared.min.s32 [%0], %1;" ::"r"(o_shared_address(p)), "r"(v) : "memory"); }
ORC void o_red_max(const int *p, int v) { asm volatile("red.shared.max.s32 [%0], %1;" ::"r"(o_shared_address(p)), "r"(v) : "memory"); }
/* cp.async through L1 (.ca) or past it (.cg). Past L1, chunks of a line that go to several lines of shared memory, as those of
   padded tiles do, are requested from L2 one by one: 8 KiB that all SMs read take four times as long on an H200, in lines of 32
   bytes nine times. Full lines are 10 % faster past L1. */
template <int BYTES> ORC void o_cp_async_ca(void *to, const void *from, int real) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(o_shared_address(to)), "l"(from), "r"(real), "n"(BYTES) : "memory");
}
template <int BYTES> ORC void o_cp_async_cg(void *to, const void *from, int real) {
    static_assert(BYTES == 16, "cp.async.cg copies 16 bytes");
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(o_shared_address(to)), "l"(from), "r"(real) : "memory");
}
ORC void o_cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> ORC void o_cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
/* TMA: tiles of tensor maps to shared memory; an mbarrier counts the bytes that have arrived. */
struct alignas(64) tensor_map { unsigned long long access_union[16]; };
ORC void o_prefetch_tensor_map(const tensor_map *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
template <int COUNT, int LOADS> ORC void o_init_mbarriers(unsigned long long *mbarriers) {
    ORC_UNROLL for (int i = 0; i < COUNT; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(o_shared_address(mbarriers + i)), "n"(LOADS) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* One arrival per warp at an "empty" mbarrier, on which the warp that issues TMA loads waits. */
ORC void o_mbarrier_arrive(unsigned long long *mbarrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(o_shared_address(mbarrier)) : "memory");
}
ORC void o_mbarrier_expect_tx(unsigned mbarrier, int bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mbarrier), "r"(bytes) : "memory"); }
/* The value of `o_evict_first_policy` on devices with TMA. */
#define ORC_EVICT_FIRST_POLICY 0x12f0000000000000ull
#define ORC_TMA_LOAD(rank, coordinates, policy, operands, ...) \
    template <int BYTES> ORC void o_tma_load(void *to, const tensor_map *map, unsigned long long *mbarrier, __VA_ARGS__) { \
        o_mbarrier_expect_tx(o_shared_address(mbarrier), BYTES); \
        asm volatile("cp.async.bulk.tensor." rank ".shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {" coordinates "}], [%2];" \
            ::"r"(o_shared_address(to)), "l"(map), "r"(o_shared_address(mbarrier)), ORC_OPERANDS operands : "memory"); \
    } \
    template <int BYTES> ORC void o_tma_load_evict_first(void *to, const tensor_map *map, unsigned long long *mbarrier, __VA_ARGS__) { \
        o_mbarrier_expect_tx(o_shared_address(mbarrier), BYTES); \
        asm volatile("cp.async.bulk.tensor." rank ".shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {" coordinates "}], [%2], " policy ";" \
            ::"r"(o_shared_address(to)), "l"(map), "r"(o_shared_address(mbarrier)), ORC_OPERANDS operands, "l"(ORC_EVICT_FIRST_POLICY) : "memory"); \
    }
#define ORC_OPERANDS(...) __VA_ARGS__
ORC_TMA_LOAD("2d", "%3, %4", "%5", ("r"(a), "r"(b)), int a, int b)
ORC_TMA_LOAD("3d", "%3, %4, %5", "%6", ("r"(a), "r"(b), "r"(c)), int a, int b, int c)
ORC_TMA_LOAD("4d", "%3, %4, %5, %6", "%7", ("r"(a), "r"(b), "r"(c), "r"(d)), int a, int b, int c, int d)
ORC_TMA_LOAD("5d", "%3, %4, %5, %6, %7", "%8", ("r"(a), "r"(b), "r"(c), "r"(d), "r"(e)), int a, int b, int c, int d, int e)
ORC void o_mbarrier_wait(unsigned long long *mbarrier, int phase) {
    asm volatile("{\n.reg .pred q;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 q, [%0], %1;\n@!q bra again;\n}" ::"r"(o_shared_address(mbarrier)), "r"(phase & 1) : "memory");
}
template <int N, bool T> ORC void o_ldmatrix(unsigned *r, const void *row) {
    unsigned p = o_shared_address(row);
    if (N == 4 && !T) asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p));
    if (N == 4 && T) asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p));
    if (N == 2 && !T) asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(p));
    if (N == 2 && T) asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(p));
    if (N == 1 && !T) asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(p));
    if (N == 1 && T) asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(p));
}
#define ORC_MMA_M16N8K16(name, type) \
    ORC void name(float *c, const unsigned *a, const unsigned *b) { \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
ORC_MMA_M16N8K16(o_mma_f16, "f16")
ORC_MMA_M16N8K16(o_mma_bf16, "bf16")
ORC void o_mma_tf32(float *c, const float *a, const float *b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
/* Elements of 16 bits in pairs in 32-bit registers, as fragments of mma hold them: element 2i in the low half. */
template <int N, class T> ORC void o_pack_fragment(unsigned *p, vec<T, N> v) {
    ORC_UNROLL for (int i = 0; i < N / 2; i++) p[i] = (unsigned)v.v[2 * i].bits | (unsigned)v.v[2 * i + 1].bits << 16;
}
template <class T> ORC T o_fragment_element(const unsigned *p, int i) {
    T r;
    r.bits = (unsigned short)(p[i / 2] >> 16 * (i % 2));
    return r;
}
template <int N, class T> ORC vec<T, N> o_unpack_fragment(const unsigned *p) {
    vec<T, N> r;
    ORC_UNROLL for (int i = 0; i < N; i++) r.v[i] = o_fragment_element<T>(p, i);
    return r;
}
/* A register of half I of register a (low) and half J of register b (high). */
template <int I, int J> ORC void o_pack_selected(unsigned *p, unsigned a, unsigned b) {
    *p = __byte_perm(a, b, (I ? 0x32 : 0x10) | (J ? 0x7600 : 0x5400));
}
/* BYTES of an input into registers, past L1, long before they are used; zeros if not `real`. The compiler keeps the order of
   such loads. */
template <int BYTES> struct load_no_l1;
#define ORC_LOAD_NO_L1_8(name, hint, policy, ...) \
    ORC void name(unsigned *r, const void *p, int real) { \
        asm volatile("{\n.reg .pred q;\nsetp.ne.b32 q, %3, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n@q ld.global.L1::no_allocate" hint ".v2.b32 {%0, %1}, [%2]" policy ";\n}" \
            : "=&r"(r[0]), "=&r"(r[1]) : "l"(p), "r"(real) __VA_ARGS__); \
    }
#define ORC_LOAD_NO_L1_16(name, hint, policy, ...) \
    ORC void name(unsigned *r, const void *p, int real) { \
        asm volatile("{\n.reg .pred q;\nsetp.ne.b32 q, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n@q ld.global.L1::no_allocate" hint ".v4.b32 {%0, %1, %2, %3}, [%4]" policy ";\n}" \
            : "=&r"(r[0]), "=&r"(r[1]), "=&r"(r[2]), "=&r"(r[3]) : "l"(p), "r"(real) __VA_ARGS__); \
    }
#define ORC_WITH_POLICY , "l"(o_evict_first_policy())
template <> struct load_no_l1<8> {
    ORC_LOAD_NO_L1_8(load, "", "", )
    ORC_LOAD_NO_L1_8(load_evict_first, ".L2::cache_hint", ", %4", ORC_WITH_POLICY)
};
template <> struct load_no_l1<16> {
    ORC_LOAD_NO_L1_16(load, "", "", )
    ORC_LOAD_NO_L1_16(load_evict_first, ".L2::cache_hint", ", %6", ORC_WITH_POLICY)
};
template <int BYTES> ORC void o_load_no_l1(unsigned *r, const void *p, bool real) { load_no_l1<BYTES>::load(r, p, real); }
template <int BYTES> ORC void o_load_no_l1_evict_first(unsigned *r, const void *p, bool real) { load_no_l1<BYTES>::load_evict_first(r, p, real); }
/* Programmatic dependent launch: lets the next kernel start; waits for the end of the kernels before this one. */
ORC void o_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
ORC void o_grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/* Makes writes to shared memory visible to wgmma and TMA (the async proxy). */
ORC void o_fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/* Keeps the compiler from moving accesses of N registers across this line. */
template <int N> ORC void o_pin_registers(float *c) { ORC_UNROLL for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory"); }
/* Waits until a number is computed. No arithmetic gives a NaN of these bits, which ptxas does not know. */
ORC void o_compute_first(float a) {
    asm volatile("{\n.reg .pred p, q;\nagain:\nsetp.eq.b32 p, %0, 0x7fbadbad;\nvote.sync.any.pred q, p, 0xffffffff;\n@q bra again;\n}" ::"r"(__float_as_int(a)) : "memory");
}
ORC void o_wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
/* wgmma matrix descriptor of a tile of 128-byte rows, 128B-swizzled: address / 16 in bits 0-13, leading byte offset / 16 (`panel`,
   from one panel of 64 columns to the next) in bits 16-29, stride 1024 bytes (8 rows) / 16 in bits 32-45, swizzle mode 1 in bit 62. */
ORC unsigned long long o_wgmma_descriptor(const void *p, unsigned long long panel) {
    return (unsigned long long)((o_shared_address(p) & 0x3ffff) >> 4) | panel << 16 | 64ull << 32 | 1ull << 62;
}
