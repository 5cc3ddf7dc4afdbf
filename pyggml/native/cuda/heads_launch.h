// Launches what heads.h describes.
#pragma once

#include "heads.h"

#include <cuda_runtime.h>

cudaError_t launch_heads(const heads & h, cudaStream_t stream);
