// CUDA's words for kernels that run on a processor: each thread of a block is a fiber, blocks run one after another, those of
// a cluster in turns.
// A warp runs until it waits for others, blocks in turn from the first warp on and from the last: without a barrier a
// warp then uses what others have yet to write.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#ifndef EMULATED_ARCH
#define EMULATED_ARCH 800
#endif
#define __CUDA_ARCH__ EMULATED_ARCH
#define __device__
#define __host__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct alignas(8) int2 { int x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(2) char2 { signed char x, y; };
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
using cudaStream_t = void *;
template <class Kernel>
static cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) { return cudaSuccess; }

constexpr int WARP = 32, MAX_THREADS = 256, MAX_TOGETHER = 8, MAX_FIBERS = MAX_THREADS * MAX_TOGETHER;
constexpr size_t STACK_BYTES = 1 << 17, SHARED_BYTES = 227 * 1024;
alignas(128) inline char memory[SHARED_BYTES];

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

// Threads that wait for each other; `words` is what each has left for the others.
struct meeting {
    int n_members = 0, n_arrived = 0;
    long turn = 0;
};

// The blocks of a cluster: block b has the fibers from b * blockDim.x on. `memory` is that of one of them at a time.
struct fiber_blocks {
    ucontext_t scheduler, fibers[MAX_FIBERS];
    std::unique_ptr<char[]> stacks{new char[MAX_FIBERS * STACK_BYTES]};
    bool is_done[MAX_FIBERS], has_waited[MAX_FIBERS];  // has_waited: for earlier kernels
    int n_ended[MAX_TOGETHER];  // of a block
    int current = 0;
    std::function<void()> body;
    meeting cluster, whole[MAX_TOGETHER], named[MAX_TOGETHER][16], warps[MAX_FIBERS / WARP];
    alignas(16) char words[MAX_FIBERS][64];
    bool any = false;
    long n_moves = 0;  // of fibers that went on
    long n_blocks = 0;
    int n_together = 1, shown = 0;
    size_t n_shared = SHARED_BYTES;
    std::vector<char> others[MAX_TOGETHER];  // memory of those that are not shown
};
inline fiber_blocks fibers;

static inline int block_of(int fiber) { return fiber / static_cast<int>(blockDim.x); }

static inline void show(int block) {
    if (block != fibers.shown) {
        fibers.others[fibers.shown].assign(memory, memory + fibers.n_shared);
        std::memcpy(memory, fibers.others[block].data(), fibers.n_shared);
        fibers.shown = block;
    }
}

// What earlier kernels write and this one only reads. A thread finds it behind its own wait for them, before that NaNs.
struct late_input {
    void * at;
    std::vector<char> right;
};
inline std::vector<late_input> late_inputs;
inline bool are_late_shown = true;

template <class T>
static void comes_late(std::vector<T> & v) {
    const char * bytes = reinterpret_cast<const char *>(v.data());
    late_inputs.push_back({v.data(), {bytes, bytes + v.size() * sizeof(T)}});
}

static inline void show_late(bool is_wanted) {
    if (is_wanted == are_late_shown) {
        return;
    }
    for (const late_input & input : late_inputs) {
        if (is_wanted) {
            std::memcpy(input.at, input.right.data(), input.right.size());
        } else {
            std::memset(input.at, 0xff, input.right.size());
        }
    }
    are_late_shown = is_wanted;
}

static inline void fiber_main() {
    fibers.body();
    fibers.is_done[fibers.current] = true;
    if (++fibers.n_ended[block_of(fibers.current)] == static_cast<int>(blockDim.x)) {
        std::memset(memory, 0xff, fibers.n_shared);  // nobody has it any more
    }
    swapcontext(&fibers.fibers[fibers.current], &fibers.scheduler);
}

static inline void meet(meeting & at, int n_members) {
    const long turn = at.turn;
    if (++at.n_arrived == n_members) {
        at.n_arrived = 0;
        at.turn++;
        fibers.n_moves++;
        return;
    }
    while (at.turn == turn) {
        const int mine = fibers.current;
        swapcontext(&fibers.fibers[mine], &fibers.scheduler);
    }
}

static inline dim3 place_in_grid(unsigned i) {
    return dim3(i % gridDim.x, i / gridDim.x % gridDim.y, i / gridDim.x / gridDim.y);
}

// Whether all its threads have ended.
static inline bool run_warp(int warp, unsigned first_block) {
    bool is_done = false;
    for (long n_moves = -1; n_moves != fibers.n_moves && !is_done;) {
        n_moves = fibers.n_moves;
        is_done = true;
        for (int i = warp * WARP; i < (warp + 1) * WARP; i++) {
            if (!fibers.is_done[i]) {
                fibers.current = i;
                threadIdx = dim3(static_cast<unsigned>(i) % blockDim.x, 0, 0);
                blockIdx = place_in_grid(first_block + block_of(i));
                show(block_of(i));
                show_late(fibers.has_waited[i]);
                swapcontext(&fibers.scheduler, &fibers.fibers[i]);
                is_done &= fibers.is_done[i];
            }
        }
    }
    return is_done;
}

static inline void run_blocks(const std::function<void()> & body, unsigned first_block) {
    fibers.body = body;
    fibers.shown = 0;
    std::memset(memory, 0xff, sizeof(memory));  // NaNs, as floats and halves
    for (int b = 1; b < fibers.n_together; b++) {
        fibers.others[b].assign(fibers.n_shared, static_cast<char>(0xff));
    }
    std::fill_n(fibers.n_ended, fibers.n_together, 0);
    const unsigned n_threads = blockDim.x * fibers.n_together;
    for (unsigned i = 0; i < n_threads; i++) {
        fibers.is_done[i] = fibers.has_waited[i] = false;
        getcontext(&fibers.fibers[i]);
        fibers.fibers[i].uc_stack.ss_sp = fibers.stacks.get() + i * STACK_BYTES;
        fibers.fibers[i].uc_stack.ss_size = STACK_BYTES;
        makecontext(&fibers.fibers[i], fiber_main, 0);
    }
    const int n_warps = static_cast<int>(n_threads) / WARP;
    const bool is_reversed = fibers.n_blocks++ % 2 == 1;
    for (bool is_done = false; !is_done;) {
        is_done = true;
        for (int w = 0; w < n_warps; w++) {
            is_done &= run_warp(is_reversed ? n_warps - 1 - w : w, first_block);
        }
    }
    show_late(true);
}

// What lane `from(lane)` of the warp has, for each of its lanes.
template <class T, class From>
static T from_lane(const T & mine, const From & from) {
    const int thread = fibers.current, warp = thread / WARP;
    std::memcpy(fibers.words[thread], &mine, sizeof(T));
    meet(fibers.warps[warp], WARP);
    T other;
    std::memcpy(&other, fibers.words[warp * WARP + from(thread % WARP)], sizeof(T));
    meet(fibers.warps[warp], WARP);
    return other;
}

template <class T>
static T __shfl_xor_sync(unsigned, T v, int offset) {
    return from_lane(v, [offset](int lane) { return lane ^ offset; });
}

template <class T, class Better>
static T best_of_warp(T v, const Better & is_better) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const T other = from_lane(v, [offset](int lane) { return lane ^ offset; });
        v = is_better(other, v) ? other : v;
    }
    return v;
}

static inline unsigned __reduce_max_sync(unsigned, unsigned v) { return best_of_warp(v, std::greater<unsigned>()); }
static inline int __reduce_min_sync(unsigned, int v) { return best_of_warp(v, std::less<int>()); }

template <class T>
static T __shfl_sync(unsigned, T v, int from) {
    return from_lane(v, [from](int) { return from; });
}

static inline void __syncwarp() { meet(fibers.warps[fibers.current / WARP], WARP); }
static inline void __syncthreads() { meet(fibers.whole[block_of(fibers.current)], static_cast<int>(blockDim.x)); }
static inline int __syncthreads_or(int v) {
    fibers.any = fibers.any || v;
    __syncthreads();
    const bool any = fibers.any;
    __syncthreads();
    fibers.any = false;
    return any;
}
static inline void __threadfence() {}
static inline unsigned atomicInc(unsigned * p, unsigned last) {
    const unsigned old = *p;
    *p = old >= last ? 0 : old + 1;
    return old;
}

template <class T>
static T __ldcg(const T * p) { return *p; }
static inline float __int_as_float(int v) { float f; std::memcpy(&f, &v, 4); return f; }
static inline float __uint_as_float(unsigned v) { float f; std::memcpy(&f, &v, 4); return f; }
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline unsigned __float_as_uint(float v) { unsigned u; std::memcpy(&u, &v, 4); return u; }
static inline float __fdividef(float a, float b) { return a / b; }
#define __expf std::exp
static inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t both = x | static_cast<uint64_t>(y) << 32;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        out |= static_cast<unsigned>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    }
    return out;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    return static_cast<unsigned>((low | static_cast<uint64_t>(high) << 32) >> (n & 31));
}
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) {
        c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
    }
    return c;
}
using std::max;
using std::min;
