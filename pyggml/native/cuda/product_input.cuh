// The activations of a product: read, summed, normed, weighted and rounded to 8 bits by every block for itself.
// A block of 32 has ggml's q8_1 arithmetic: d = max / 127 as float16, quants rounded to nearest.
#pragma once

#include "product_ring.cuh"
#include "products.h"
#include "warp_sums.cuh"
#include "weight_blocks.cuh"

constexpr int N_INPUT_THREADS = 256;
constexpr int CHUNK = 4 * N_INPUT_THREADS;  // elements that a block takes at once
constexpr int N_TOGETHER = 4;               // worked on together, since each is a long chain

// In shared memory, by column-block (weight_blocks.cuh).
struct shared_input {
    uint32_t * q;  // 8 words each
    float * d;
    float * s;        // nullptr where no sums are needed
    float * factors;  // two times a sum of each warp
};

static __device__ __forceinline__ float4 sum_of(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The values times `factor`, of which only the scale takes notice.
template <class W, int N>
static __device__ __forceinline__ void round_four(float4 v, int column, int i, bool is_inside, const shared_input & to,
                                                  float factor = 1.0f) {
    const int at = i / 32 * N + column;
    const int word = i / 4 % 8;
    float largest = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, offset));
    }
    // An integer's low byte lies in the low bits of MAGIC + integer.
    const float d = largest * (1.0f / 127.0f);
    const float inverse = largest > 1e-37f ? fast_inverse(largest) * 127.0f : 0.0f;
    const uint32_t q[4] = {__float_as_uint(v.x * inverse + MAGIC), __float_as_uint(v.y * inverse + MAGIC),
                           __float_as_uint(v.z * inverse + MAGIC), __float_as_uint(v.w * inverse + MAGIC)};
    const uint32_t low = __byte_perm(q[0], q[1], 0x0040), high = __byte_perm(q[2], q[3], 0x0040);
    const uint32_t all = __byte_perm(low, high, 0x5410);
    int total = 0;
    if constexpr (W::SUMS == sum_kind::of_quants) {
        total = __dp4a(static_cast<int>(all), 0x01010101, 0);
#pragma unroll
        for (int offset = 4; offset > 0; offset /= 2) {
            total += __shfl_xor_sync(0xffffffff, total, offset);
        }
    }
    if (!is_inside) {
        return;
    }
    const auto half_word = [&](int w) {  // words t and t + 4 lie together
        return reinterpret_cast<uint16_t *>(to.q + at * 8 + w % 4 * 2 + w / 4);
    };
    if (W::IS_ROTATED && i / 32 % 2 == 0) {
        half_word(word)[1] = static_cast<uint16_t>(low);
        half_word((word + 1) % 8)[0] = static_cast<uint16_t>(high);
    } else {
        *reinterpret_cast<uint32_t *>(half_word(word)) = all;
    }
    if (word == 0) {
        const float rounded = __half2float(__float2half(d));
        to.d[at] = rounded * factor;
        if constexpr (W::SUMS == sum_kind::of_quants) {
            to.s[at] = rounded * total * factor;
        }
    }
}

// Scales of absent columns and of blocks behind the last are 0.
template <int N>
static __device__ __forceinline__ void clear_absent(const products & p, const shared_input & to) {
    const int n_blocks = p.n_weights / 32, n_padded = (n_blocks + UNIT_BLOCKS - 1) / UNIT_BLOCKS * UNIT_BLOCKS;
    if (p.n_columns == N && n_padded == n_blocks) {
        return;
    }
    for (int i = threadIdx.x; i < n_padded * N; i += blockDim.x) {
        if (i % N >= p.n_columns || i / N >= n_blocks) {
            to.d[i] = 0;
            if (to.s) {
                to.s[i] = 0;
            }
        }
    }
}

// Norm weights never change: blocks bring a part each into L2 while the earlier kernels run.
static __device__ __forceinline__ void warm_norm(const products & p) {
    constexpr int LINE = 32;
    const int i = (blockIdx.x + gridDim.x * threadIdx.x) * LINE;
    if (p.in.norm_weight && i < p.n_weights) {
        bring_to_l2(p.in.norm_weight + i);
    }
}

// Column after column, in registers: its time counts in full, so there are no loops around single loads, and one copy of
// the code that rounds. Normed ones can have MAX_NORMED weights.
template <class W, int N, bool WRITES_SUM = false>
struct input_taker {
    static constexpr int N_HELD = 16;  // chunks, or 8 and as many of norm weights
    static constexpr int MAX_NORMED = N_HELD / 2 * CHUNK;

    static __device__ __forceinline__ void load(float4 held[N_HELD / 2], const float * from, int n) {
#pragma unroll
        for (int k = 0; k < N_HELD / 2; k++) {
            const int i = k * CHUNK + static_cast<int>(threadIdx.x) * 4;
            held[k] = make_float4(0, 0, 0, 0);
            if (i < n) {
                held[k] = __ldcg(reinterpret_cast<const float4 *>(from + i));
            }
        }
    }

    static __device__ __forceinline__ void add_addend(float4 held[N_HELD], const products & p, int column) {
        load(held + N_HELD / 2, p.in.addend + column * p.in.addend_stride, p.n_weights);
#pragma unroll
        for (int k = 0; k < N_HELD / 2; k++) {
            held[k] = sum_of(held[k], held[k + N_HELD / 2]);
            const int i = k * CHUNK + static_cast<int>(threadIdx.x) * 4;
            if (WRITES_SUM && i < p.n_weights) {
                *reinterpret_cast<float4 *>(p.in.sum + column * p.in.sum_stride + i) = held[k];
            }
        }
    }

    static __device__ __forceinline__ void norm(float4 held[N_HELD], const products & p, float * warp_sums) {
        float4 squares = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < N_HELD / 2; k++) {
            const float4 x = held[k];
            squares = make_float4(squares.x + x.x * x.x, squares.y + x.y * x.y, squares.z + x.z * x.z, squares.w + x.w * x.w);
        }
        const float sum = warp_sum((squares.x + squares.y) + (squares.z + squares.w));
        if (threadIdx.x % 32 == 0) {
            warp_sums[threadIdx.x / 32] = sum;
        }
        __syncthreads();
        float total = 0;
#pragma unroll
        for (int warp = 0; warp < N_INPUT_THREADS / 32; warp++) {
            total += warp_sums[warp];
        }
        const float f = rsqrtf(__fdividef(total, static_cast<float>(p.n_weights)) + p.in.eps);
#pragma unroll
        for (int k = 0; k < N_HELD / 2; k++) {
            const float4 x = held[k], w = held[k + N_HELD / 2];
            held[k] = make_float4(f * x.x * w.x, f * x.y * w.y, f * x.z * w.z, f * x.w * w.w);
        }
    }

    // round(v, i) for what the first N_CHUNKS hold of n values; what they hold is lost.
    template <int N_CHUNKS, class ROUND>
    static __device__ __forceinline__ void round_held(float4 held[N_CHUNKS], int n, const ROUND & round) {
#pragma unroll 1
        for (int first = 0; first < min(n, N_CHUNKS * CHUNK); first += N_TOGETHER * CHUNK) {
#pragma unroll
            for (int k = 0; k < N_TOGETHER; k++) {
                round(held[k], first + k * CHUNK + static_cast<int>(threadIdx.x) * 4);
            }
#pragma unroll
            for (int k = 0; k < N_CHUNKS - N_TOGETHER; k++) {
                held[k] = held[k + N_TOGETHER];
            }
        }
    }

    static __device__ __forceinline__ void take_part(const products & p, int column, int start, const shared_input & to) {
        const float * x = p.in.x + column * p.in.x_stride + start;
        const int n = p.n_weights - start;
        float4 held[N_HELD];
        load(held, x, n);
        if (p.in.addend) {
            add_addend(held, p, column);
        }
        const int n_upper = p.in.is_normed ? n : n - N_HELD / 2 * CHUNK;
        load(held + N_HELD / 2, p.in.is_normed ? p.in.norm_weight : x + N_HELD / 2 * CHUNK, n_upper);
        if (p.in.is_normed) {
            // Two places in turn: nobody writes one before all have read it two columns ago.
            norm(held, p, to.factors + column % 2 * (N_INPUT_THREADS / 32));
        }
        round_held<N_HELD>(held, n, [&](float4 v, int i) { round_four<W, N>(v, column, start + i, i < n, to); });
    }

    // Ends with a barrier.
    static __device__ __forceinline__ void take(const products & p, const shared_input & to) {
#pragma unroll 1
        for (int column = 0; column < p.n_columns; column++) {
#pragma unroll 1
            for (int start = 0; start < p.n_weights; start += N_HELD * CHUNK) {
                take_part(p, column, start, to);
            }
        }
        __syncthreads();
    }
};

// The sum's tensor may be x or addend itself: only the last block to have read them writes it. Thread 0 counts its block once
// all threads have what they read; how many were before it is asked for early and looked at in the end.
static __device__ __forceinline__ unsigned count_reader(const products & p) {
    return p.in.sum && threadIdx.x == 0 ? atomicInc(p.in.n_read, gridDim.x - 1) : 0;
}

static __device__ __forceinline__ void write_sum(const products & p, unsigned n_before) {
    if (!p.in.sum || !__syncthreads_or(threadIdx.x == 0 && n_before == gridDim.x - 1)) {
        return;
    }
#pragma unroll 1
    for (int column = 0; column < p.n_columns; column++) {
#pragma unroll 1
        for (int start = 0; start < p.n_weights; start += N_TOGETHER * CHUNK) {
            float4 held[N_TOGETHER];
#pragma unroll
            for (int k = 0; k < N_TOGETHER; k++) {
                const int i = start + k * CHUNK + static_cast<int>(threadIdx.x) * 4;
                if (i < p.n_weights) {
                    held[k] = sum_of(__ldcg(reinterpret_cast<const float4 *>(p.in.x + column * p.in.x_stride + i)),
                                     __ldcg(reinterpret_cast<const float4 *>(p.in.addend + column * p.in.addend_stride + i)));
                }
            }
#pragma unroll
            for (int k = 0; k < N_TOGETHER; k++) {
                const int i = start + k * CHUNK + static_cast<int>(threadIdx.x) * 4;
                if (i < p.n_weights) {
                    *reinterpret_cast<float4 *>(p.in.sum + column * p.in.sum_stride + i) = held[k];
                }
            }
        }
    }
}
