// Launches what attention.h describes.
#pragma once

#include "attention.h"

#include <cuda_runtime.h>

// Memory for the parts of a launch, whatever the length of its window.
size_t attention_floats(const attention & p, int n_processors);

cudaError_t launch_attention(attention p, int n_processors, cudaStream_t stream);
