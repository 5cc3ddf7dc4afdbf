// Every block norms all columns for itself and multiplies them with a row or a few; its first row and the norm's weights are
// there before the earlier kernels have ended. Each row's sum is added in the same order always.
#pragma once

#include "launch_order.cuh"
#include "product_input.cuh"
#include "router.h"

struct router_kernel {
    using taker = input_taker<void, 1>;
    static constexpr int N_HELD = taker::N_HELD / 2;  // chunks
    static constexpr int N_WARPS = N_INPUT_THREADS / 32;

    static __device__ __forceinline__ float dot(const float4 a[N_HELD], const float4 b[N_HELD]) {
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < N_HELD; k++) {
            sum = make_float4(sum.x + a[k].x * b[k].x, sum.y + a[k].y * b[k].y, sum.z + a[k].z * b[k].z, sum.w + a[k].w * b[k].w);
        }
        return (sum.x + sum.y) + (sum.z + sum.w);
    }

    // Behind the values lie the norm's weights; an addend takes their place for a moment.
    static __device__ __forceinline__ void load_input(float4 held[2 * N_HELD], const router_product & p, int column) {
        taker::load(held, p.in.x + column * p.in.x_stride, p.n_weights);
        if (p.in.addend) {
            taker::add_addend(held, p, column);
            taker::load(held + N_HELD, p.in.norm_weight, p.n_weights);
        }
    }

    static __device__ __forceinline__ void keep_normed(const float4 held[N_HELD], const router_product & p, int column) {
        float * to = p.normed + static_cast<int64_t>(column) * p.n_weights;
#pragma unroll
        for (int k = 0; k < N_HELD; k++) {
            const int i = k * CHUNK + static_cast<int>(threadIdx.x) * 4;
            if (i < p.n_weights) {
                *reinterpret_cast<float4 *>(to + i) = held[k];
            }
        }
    }

    // `warp_sums` has four places in turn: two of the norm, two of rows.
    static __device__ __forceinline__ void run(const router_product & p, float * warp_sums) {
        if (p.next != NEXT_AT_END) {
            let_next_start();
        }
        const product_matrix & matrix = p.matrix[0];
        const auto row_at = [&](int row) { return reinterpret_cast<const float *>(matrix.data) + static_cast<int64_t>(row) * p.n_weights; };
        float4 held[2 * N_HELD], weights[N_HELD];
        int loaded = blockIdx.x, turn = 0;
        taker::load(weights, row_at(loaded), p.n_weights);
        taker::load(held + N_HELD, p.in.norm_weight, p.n_weights);
        wait_for_earlier();
#pragma unroll 1
        for (int column = 0; column < p.n_columns; column++) {
            load_input(held, p, column);
            taker::norm(held, p, warp_sums + column % 2 * N_WARPS);
            if (column % static_cast<int>(gridDim.x) == static_cast<int>(blockIdx.x)) {
                keep_normed(held, p, column);
            }
#pragma unroll 1
            for (int row = blockIdx.x; row < matrix.n_rows; row += gridDim.x, turn ^= 1) {
                if (row != loaded) {
                    taker::load(weights, row_at(row), p.n_weights);
                    loaded = row;
                }
                float * sums = warp_sums + (2 + turn) * N_WARPS;
                const float sum = warp_sum(dot(held, weights));
                if (threadIdx.x % 32 == 0) {
                    sums[threadIdx.x / 32] = sum;
                }
                __syncthreads();
                if (threadIdx.x == 0) {
                    float total = 0;
#pragma unroll
                    for (int warp = 0; warp < N_WARPS; warp++) {
                        total += sums[warp];
                    }
                    matrix.out[column * matrix.out_stride + row] = total;
                }
            }
        }
        __syncthreads();
        write_sum(p, count_reader(p));
    }
};

static __global__ void __launch_bounds__(N_INPUT_THREADS, 2) multiply_router(const __grid_constant__ router_product p) {
#if __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) char memory[];
    router_kernel::run(p, reinterpret_cast<float *>(memory));
#endif
}

static inline cudaError_t launch_router_rows(const router_product & p, const product_card & card, cudaStream_t stream) {
    const unsigned n_blocks = p.matrix[0].n_rows < card.n_processors ? p.matrix[0].n_rows : card.n_processors;
    return launch_in_order(multiply_router, dim3(n_blocks), dim3(N_INPUT_THREADS), 4 * router_kernel::N_WARPS * sizeof(float), stream, p);
}
