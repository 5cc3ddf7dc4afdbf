// Words that several cards and the host see: ordered stores and loads at system scope, and a common clock.
// And the bits of numbers.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#define PUSH_ARGUMENT  // older cards take kernel arguments by copy only
#else
#define PUSH_ARGUMENT __grid_constant__
#endif

// Everything this thread has seen stored before, its block's stores included once they met, is seen with the word.
static __device__ __forceinline__ void store_release(uint64_t * word, uint64_t value) {
#if __CUDA_ARCH__ >= 700
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
    __threadfence_system();
    *reinterpret_cast<volatile uint64_t *>(word) = value;
#endif
}

static __device__ __forceinline__ uint64_t load_acquire(const uint64_t * word) {
    uint64_t value;
#if __CUDA_ARCH__ >= 700
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
#else
    value = *reinterpret_cast<const volatile uint64_t *>(word);
    __threadfence_system();
#endif
    return value;
}

// Two words at once, each of which is seen whole or not at all; in no order with others. At a multiple of 16 bytes.
static __device__ __forceinline__ void store_two(uint64_t * words, uint64_t first, uint64_t second) {
#if __CUDA_ARCH__ >= 700
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(words), "l"(first), "l"(second) : "memory");
#else
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(words), "l"(first), "l"(second) : "memory");
#endif
}

static __device__ __forceinline__ void load_two(const uint64_t * words, uint64_t (&to)[2]) {
#if __CUDA_ARCH__ >= 700
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(to[0]), "=l"(to[1]) : "l"(words) : "memory");
#else
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(to[0]), "=l"(to[1]) : "l"(words) : "memory");
#endif
}

static __device__ __forceinline__ uint64_t now_ns() {
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

static __device__ __forceinline__ uint32_t bits_of_float(float x) {
    return __float_as_uint(x);
}

static __device__ __forceinline__ float float_of_bits(uint32_t bits) {
    return __uint_as_float(bits);
}

static __device__ __forceinline__ float float_of_half(uint16_t bits) {
    return __half2float(__ushort_as_half(bits));
}

static __device__ __forceinline__ uint16_t half_of_float(float x) {  // to nearest, ties to even
    return __half_as_ushort(__float2half_rn(x));
}
