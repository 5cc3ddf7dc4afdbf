// Launches that run at once, block after block.
#pragma once

#include "cuda_runtime.h"

static inline void let_next_start() {}
static inline void wait_for_earlier() {
    fibers.has_waited[fibers.current] = true;
    show_late(true);
}

template <class... Arguments>
static cudaError_t launch_clusters(void (*kernel)(Arguments...), dim3 grid, dim3 block, unsigned n_together, size_t shared,
                                   cudaStream_t, const Arguments &... arguments) {
    if (shared > SHARED_BYTES || block.x > MAX_THREADS || n_together > MAX_TOGETHER) {
        return cudaErrorInvalidValue;
    }
    gridDim = grid;
    blockDim = block;
    fibers.n_together = static_cast<int>(n_together);
    fibers.n_shared = shared;
    for (unsigned i = 0; i < grid.x * grid.y * grid.z; i += n_together) {
        run_blocks([&] { kernel(arguments...); }, i);
    }
    return cudaSuccess;
}

template <class... Arguments>
static cudaError_t launch_in_order(void (*kernel)(Arguments...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                                   const Arguments &... arguments) {
    return launch_clusters(kernel, grid, block, 1, shared, stream, arguments...);
}
