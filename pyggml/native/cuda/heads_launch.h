// Launches what heads.h and attention.h describe.
#pragma once

#include "attention.h"

#include <cuda_runtime.h>

cudaError_t launch_heads(const heads & h, cudaStream_t stream);
bool has_attention_kernels();
cudaError_t launch_attention(const attention & a, cudaStream_t stream);
