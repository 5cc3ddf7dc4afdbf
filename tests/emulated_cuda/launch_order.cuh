// Launches that run at once, block after block.
#pragma once

#include "cuda_runtime.h"

static inline void let_next_start() {}
static inline void wait_for_earlier() {}

template <class... Arguments>
static cudaError_t launch_in_order(void (*kernel)(Arguments...), dim3 grid, dim3 block, size_t shared, cudaStream_t,
                                   const Arguments &... arguments) {
    if (shared > SHARED_BYTES || block.x > MAX_THREADS) {
        return cudaErrorInvalidValue;
    }
    gridDim = grid;
    blockDim = block;
    for (unsigned i = 0; i < grid.x * grid.y * grid.z; i++) {
        blockIdx = dim3(i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y);
        run_block([&] { kernel(arguments...); }, block.x);
    }
    return cudaSuccess;
}
