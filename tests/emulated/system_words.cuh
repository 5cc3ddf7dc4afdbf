// CUDA's words in C++, for running a kernel on processors: a block is a process, a thread of it a thread.
// Stands where pyggml/native/cuda/system_words.cuh stands; stores now and then come late, so that orders vary.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(n)
#define __shared__ static
#define PUSH_ARGUMENT

using std::max;
using std::min;

struct index_of {
    int x;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

inline thread_local index_of threadIdx;
inline index_of blockIdx, gridDim;
inline std::barrier<> * block_meeting;
inline std::atomic<int> block_votes[3];
inline thread_local int n_votes;

inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    return {x, y, z, w};
}

inline uint32_t bits_of_float(float x) {
    return std::bit_cast<uint32_t>(x);
}

inline float float_of_bits(uint32_t bits) {
    return std::bit_cast<float>(bits);
}

inline float float_of_half(uint16_t bits) {
    return static_cast<float>(std::bit_cast<_Float16>(bits));
}

inline uint16_t half_of_float(float x) {
    return std::bit_cast<uint16_t>(static_cast<_Float16>(x));
}

inline void __syncthreads() {
    block_meeting->arrive_and_wait();
}

inline int __syncthreads_or(int vote) {
    const int now = n_votes++ % 3, before = (now + 2) % 3;
    block_votes[now] |= vote;
    block_meeting->arrive_and_wait();
    block_votes[before] = 0;  // all have read it; it is used again after the next meeting
    return block_votes[now];
}

inline void __threadfence() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

inline void __threadfence_system() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

inline uint32_t atomicInc(uint32_t * word, uint32_t limit) {
    uint32_t old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(word, &old, old >= limit ? 0 : old + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return old;
}

inline uint32_t atomicExch(uint32_t * word, uint32_t value) {
    return __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST);
}

template <typename T>
T __ldcg(const T * value) {
    return *value;
}

inline void store_release(uint64_t * word, uint64_t value) {
    if (rand() % 5 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(rand() % 300));
    }
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

inline uint64_t load_acquire(const uint64_t * word) {
    std::this_thread::yield();
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

inline void store_two(uint64_t * words, uint64_t first, uint64_t second) {
    if (rand() % 5 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(rand() % 300));
    }
    __atomic_store_n(words + 1, second, __ATOMIC_RELAXED);
    __atomic_store_n(words, first, __ATOMIC_RELAXED);
}

inline void load_two(const uint64_t * words, uint64_t (&to)[2]) {
    std::this_thread::yield();
    to[0] = __atomic_load_n(words, __ATOMIC_RELAXED);
    to[1] = __atomic_load_n(words + 1, __ATOMIC_RELAXED);
}

inline uint64_t now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch().count();
}
