// Launches of products, a type of weights each; compiled apart.
#pragma once

#include "product_card.h"
#include "products.h"

#include <cuda_runtime.h>

// Whether the module has them for the current card.
bool has_product_kernels();

// Sets how `p` is cut; cudaErrorInvalidValue where shared memory cannot hold the activations.
cudaError_t launch_q8_0(products p, const product_card & card, cudaStream_t stream);
cudaError_t launch_q4_k(products p, const product_card & card, cudaStream_t stream);
cudaError_t launch_q5_k(products p, const product_card & card, cudaStream_t stream);
cudaError_t launch_q6_k(products p, const product_card & card, cudaStream_t stream);
cudaError_t launch_q4_0(products p, const product_card & card, cudaStream_t stream);
cudaError_t launch_q4_1(products p, const product_card & card, cudaStream_t stream);
cudaError_t launch_mxfp4(products p, const product_card & card, cudaStream_t stream);
