// Launches of products, a type of weights each; compiled apart.
#pragma once

#include "experts.h"
#include "product_card.h"

#include <cuda_runtime.h>

// Whether the module has them for the current card, and whether those of one column take weights as boxes.
bool has_product_kernels();
bool product_kernels_take_boxes();

// Both set how a product is cut; cudaErrorInvalidValue where shared memory cannot hold the activations.
struct product_launches {
    cudaError_t (*alone)(products p, const product_card & card, cudaStream_t stream);
    cudaError_t (*experts)(const expert_products & p, const product_card & card, cudaStream_t stream);
};

// Of a ggml_type; cudaErrorInvalidValue is what those of other types return.
product_launches launches_of(int type);

#define PRODUCT_TYPE(name)                                                              \
    cudaError_t launch_##name(products p, const product_card & card, cudaStream_t stream); \
    cudaError_t launch_experts_##name(const expert_products & p, const product_card & card, cudaStream_t stream)

PRODUCT_TYPE(q8_0);
PRODUCT_TYPE(q4_k);
PRODUCT_TYPE(q5_k);
PRODUCT_TYPE(q6_k);
PRODUCT_TYPE(q4_0);
PRODUCT_TYPE(q4_1);
PRODUCT_TYPE(mxfp4);

#undef PRODUCT_TYPE
