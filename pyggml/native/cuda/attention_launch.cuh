// The kernel for a head's size, and its launch.
#pragma once

#include "attention.cuh"

// Of a thread, so that a block finds room beside two of products. Heads of 256 took twice as many, and a model with them
// was slower by an eighth.
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1204
#define ATTENTION_REGISTERS __maxnreg__(96)
#else
#define ATTENTION_REGISTERS __launch_bounds__(32 * ATTENTION_WARPS, 5)
#endif

template <int D, bool IS_ONCE>
static __global__ void ATTENTION_REGISTERS attend(const __grid_constant__ attention a) {
#if __CUDA_ARCH__ >= 800
    extern __shared__ __align__(128) char memory[];
    using kernel = attention_kernel<D, IS_ONCE>;
    kernel::run(a, *reinterpret_cast<typename kernel::shared_memory *>(memory));
#endif
}

template <int D, bool IS_ONCE>
static cudaError_t launch_kernel(const attention & a, cudaStream_t stream) {
    // Products beside it want most of a processor's shared memory.
    const auto kernel = attend<D, IS_ONCE>;
    if (const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100); status != cudaSuccess) {
        return status;
    }
    const dim3 grid(ATTENTION_BLOCKS * a.n_clusters, a.n_head / a.n_group * a.n_parts, a.from.n_tokens);
    constexpr size_t SHARED = sizeof(typename attention_kernel<D, IS_ONCE>::shared_memory);
    return launch_clusters(kernel, grid, dim3(32 * ATTENTION_WARPS), ATTENTION_BLOCKS, SHARED, stream, a);
}

template <int D>
static cudaError_t launch_size(const attention & a, cudaStream_t stream) {
    return a.n_kv == a.n_clusters * ATTENTION_CLUSTER_ROWS ? launch_kernel<D, true>(a, stream) : launch_kernel<D, false>(a, stream);
}

static cudaError_t launch_attention_of(attention a, cudaStream_t stream) {
    a.n_parts = attention_parts(a.n_group);
    a.n_together = (a.n_group + a.n_parts - 1) / a.n_parts;
    switch (a.from.head_dim) {
        case 64: return launch_size<64>(a, stream);
        case 128: return launch_size<128>(a, stream);
        default: return cudaErrorInvalidValue;
    }
}
