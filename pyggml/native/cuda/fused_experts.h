// Launches the experts' part of fused runs.
#pragma once

#include "fuse.h"
#include "product_card.h"
#include "products.h"

#include <cuda_runtime.h>

// Floats between its two launches.
size_t between_size(const pg_fused_experts & of);

// `next` is for its second launch.
cudaError_t launch_fused_experts(const pg_fused_experts & of, float * between, start_of_next next, const product_card & card,
                                 cudaStream_t stream);
