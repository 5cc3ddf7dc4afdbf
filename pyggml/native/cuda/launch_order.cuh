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

// Launches a kernel: early where that is wanted and it can wait, or when all earlier ones are done.
template <class... Arguments>
static cudaError_t launch_early_if(bool is_wanted, void (*kernel)(Arguments...), dim3 grid, dim3 block, size_t shared,
                                   cudaStream_t stream, const Arguments &... arguments) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = is_wanted && can_start_early(reinterpret_cast<const void *>(kernel)) ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <class... Arguments>
static cudaError_t launch_in_order(void (*kernel)(Arguments...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                                   const Arguments &... arguments) {
    return launch_early_if(true, kernel, grid, block, shared, stream, arguments...);
}
