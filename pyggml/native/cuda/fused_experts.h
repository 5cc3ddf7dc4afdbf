// Launches the experts' part of fused runs.
#pragma once

#include "fuse.h"
#include "product_card.h"

#include <cuda_runtime.h>

// Floats between its two launches.
size_t between_size(const pg_fused_experts & of);

cudaError_t launch_fused_experts(const pg_fused_experts & of, float * between, bool is_before_ours, const product_card & card,
                                 cudaStream_t stream);
