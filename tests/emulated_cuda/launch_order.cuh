// Launches that run at once, block after block. `hide` and `show`, where there are any, take away and give what earlier
// kernels leave: it is there only when all threads of a block have waited for it.
#pragma once

#include "cuda_runtime.h"

inline std::function<void()> hide, show;

static inline void let_next_start() {}
static inline void wait_for_earlier() {
    if (show) {
        __syncthreads();
        if (fibers.current == 0) {
            show();
        }
        __syncthreads();
    }
}

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
        if (hide) {
            hide();
        }
        run_block([&] { kernel(arguments...); }, block.x);
    }
    return cudaSuccess;
}
