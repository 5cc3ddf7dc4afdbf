// With a norm a block a column, which alone reads it and so may write the sum over it; without one many. Arithmetic and
// order of sums are those of the blocks that round one column for themselves (product_input.cuh).

#include "rounded_input.h"

#include "launch_order.cuh"
#include "products.cuh"

// Stands for the type of weights.
template <bool IS_ROTATED_, sum_kind SUMS_>
struct rounded_for {
    static constexpr bool IS_ROTATED = IS_ROTATED_;
    static constexpr sum_kind SUMS = SUMS_;
};

template <class W, int N, bool IS_NORMED>
static __global__ void __launch_bounds__(N_INPUT_THREADS) round_input(const __grid_constant__ products p, const __grid_constant__ shared_input into) {
#if __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) char memory[];
    let_next_start();
    warm_norm(p);
    wait_for_earlier();
    const int column = blockIdx.y;
    if (column == p.n_columns) {
        if (blockIdx.x == 0) {
            clear_absent<N>(p, into);
        }
    } else if constexpr (IS_NORMED) {
        shared_input to = into;
        to.factors = reinterpret_cast<float *>(memory);
        input_taker<W, N, true>::take_part(p, column, 0, to);
    } else {
        const int i = blockIdx.x * CHUNK + static_cast<int>(threadIdx.x) * 4;
        const bool is_inside = i < p.n_weights;
        const float * x = p.in.x + column * p.in.x_stride + i;
        round_four<W, N>(is_inside ? __ldcg(reinterpret_cast<const float4 *>(x)) : make_float4(0, 0, 0, 0), column, i, is_inside, into);
    }
#endif
}

template <class W, int N>
static cudaError_t launch_columns_of(const products & p, const shared_input & into, cudaStream_t stream) {
    const dim3 block(N_INPUT_THREADS);
    const unsigned n_rows = p.n_columns + 1;  // the last clears what no column fills
    if (p.in.is_normed) {
        const size_t factors = 2 * sizeof(float) * N_INPUT_THREADS / 32;
        return launch_in_order(round_input<W, N, true>, dim3(1, n_rows), block, factors, stream, p, into);
    }
    const unsigned n_parts = (p.n_weights + CHUNK - 1) / CHUNK;
    return launch_in_order(round_input<W, N, false>, dim3(n_parts, n_rows), block, 0, stream, p, into);
}

template <class W>
static cudaError_t launch_kind(const products & p, const shared_input & into, cudaStream_t stream) {
    switch (columns_for(p.n_columns)) {
        case 2: return launch_columns_of<W, 2>(p, into, stream);
        case 4: return launch_columns_of<W, 4>(p, into, stream);
        case 8: return launch_columns_of<W, 8>(p, into, stream);
        default: return launch_columns_of<W, 16>(p, into, stream);
    }
}

static size_t count_column_blocks(int n_weights, int n_columns) {
    return static_cast<size_t>((n_weights + UNIT_WEIGHTS - 1) / UNIT_WEIGHTS) * UNIT_BLOCKS * columns_for(n_columns);
}

size_t rounded_size(int n_weights, int n_columns) {
    return count_column_blocks(n_weights, n_columns) * (32 + 2 * sizeof(float));
}

cudaError_t launch_rounding(products & p, rounding kind, void * memory, cudaStream_t stream) {
    constexpr int MAX_NORMED = input_taker<rounded_for<false, sum_kind::none>, 2>::MAX_NORMED;
    if (p.n_columns > MAX_COLUMNS || (p.in.is_normed ? p.n_weights > MAX_NORMED : p.in.addend != nullptr)) {
        return cudaErrorInvalidValue;
    }
    const size_t n = count_column_blocks(p.n_weights, p.n_columns);
    const bool has_sums = kind == ROUNDED_WITH_SUMS;
    shared_input into = {};
    into.q = static_cast<uint32_t *>(memory);
    into.d = reinterpret_cast<float *>(into.q + 8 * n);
    into.s = has_sums ? into.d + n : nullptr;
    p.rounded = {into.q, into.d, into.s, kind};
    cudaError_t status = cudaErrorInvalidValue;
    switch (kind) {
        case ROUNDED_NOT: break;
        case ROUNDED_PLAIN: status = launch_kind<rounded_for<false, sum_kind::none>>(p, into, stream); break;
        case ROUNDED_WITH_SUMS: status = launch_kind<rounded_for<false, sum_kind::of_quants>>(p, into, stream); break;
        case ROUNDED_ROTATED: status = launch_kind<rounded_for<true, sum_kind::none>>(p, into, stream); break;
    }
    if (p.in.addend) {
        p.in.x = p.in.sum;
        p.in.x_stride = p.in.sum_stride;
        p.in.addend = nullptr;
        p.in.sum = nullptr;
    }
    return status;
}
