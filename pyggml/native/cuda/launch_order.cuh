// Programmatic dependent launch: a kernel may start while the one before it still runs. It then may touch only
// what no kernel writes (weights; or has written before it lets others start), until wait_for_earlier() says that all earlier kernels are done. ggml's kernels do so too.
// Before compute capability 9.0 kernels start one after another and both do nothing.
#pragma once

#include <cuda_runtime.h>

static __device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Whether a kernel's code has the instructions above; without them it may not start early.
static inline bool can_start_early(const void * kernel) {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
}

// Launches a kernel: early where that is wanted and it can wait, or when all earlier ones are done. More than one of n_together
// blocks next to each other form a cluster, for which the kernel must have been compiled for compute capability 9.0.
template <class... Arguments>
static cudaError_t launch_early_if(bool is_wanted, void (*kernel)(Arguments...), dim3 grid, dim3 block, unsigned n_together,
                                   size_t shared, cudaStream_t stream, const Arguments &... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    cudaLaunchAttribute attributes[2];
    config.attrs = attributes;
    if (is_wanted && can_start_early(reinterpret_cast<const void *>(kernel))) {
        attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (n_together > 1) {
        attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attributes[config.numAttrs].val.clusterDim.x = n_together;
        attributes[config.numAttrs].val.clusterDim.y = 1;
        attributes[config.numAttrs++].val.clusterDim.z = 1;
    }
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <class... Arguments>
static cudaError_t launch_in_order(void (*kernel)(Arguments...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                                   const Arguments &... arguments) {
    return launch_early_if(true, kernel, grid, block, 1, shared, stream, arguments...);
}

template <class... Arguments>
static cudaError_t launch_clusters(void (*kernel)(Arguments...), dim3 grid, dim3 block, unsigned n_together, size_t shared,
                                   cudaStream_t stream, const Arguments &... arguments) {
    return launch_early_if(true, kernel, grid, block, n_together, shared, stream, arguments...);
}
