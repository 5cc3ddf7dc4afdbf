// Attention by the kernels of attention.cuh.

#include "attention_launch.cuh"
#include "heads_launch.h"

bool has_attention_kernels() {
    return can_start_early(reinterpret_cast<const void *>(attend<128, true>));
}

cudaError_t launch_attention(const attention & a, cudaStream_t stream) {
    return launch_attention_of(a, stream);
}
