// How products with chosen experts are cut into blocks and launched.
#pragma once

#include "experts.cuh"
#include "product_launch.cuh"

template <class W, int ROWS, bool IS_GATED, bool IS_LOOSE>
static cudaError_t launch_expert_tiles(expert_products & p, const product_card & card, cudaStream_t stream) {
    p.n_result_tiles = count_tiles(p, expert_kernel<W, ROWS, IS_GATED, IS_LOOSE>::OUT_ROWS);
    if (!find_boxes<W, ROWS, IS_GATED, IS_LOOSE>(p, p.boxes, card, p.expert_bytes, p.n_experts)) {
        return cudaErrorInvalidValue;
    }
    const int n_units = count_units(p) * p.n_columns * (IS_GATED ? 1 : p.n_used);
    const size_t fixed = fixed_memory<W>(n_units, ROWS, 1) + 8 * MAX_CHOSEN;
    return launch_with_slots(multiply_experts<W, ROWS, IS_GATED, IS_LOOSE>, p, fixed, slot_memory<W, ROWS, IS_LOOSE>(), card, stream);
}

// cudaErrorInvalidValue where shared memory cannot hold the activations, or where too many experts are chosen.
template <class W, bool IS_LOOSE>
static cudaError_t launch_experts(expert_products p, const product_card & card, cudaStream_t stream) {
    if (p.n_columns * p.n_used > MAX_CHOSEN) {
        return cudaErrorInvalidValue;
    }
    const int n_units = count_units(p);
    if (p.gate) {
        choose_tiles(p, card, n_units, p.n_columns * p.n_used);
        return launch_expert_tiles<W, 16, true, IS_LOOSE>(p, card, stream);
    }
    const int rows = choose_tiles(p, card, n_units * p.n_used, p.n_columns);
    return rows == 16 ? launch_expert_tiles<W, 16, false, IS_LOOSE>(p, card, stream)
                      : launch_expert_tiles<W, 8, false, IS_LOOSE>(p, card, stream);
}
