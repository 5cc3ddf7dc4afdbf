// A router's product: x, or the sum of two tensors, normed and weighted, by a small matrix of float32.
#pragma once

#include "product_card.h"
#include "products.h"

#include <cuda_runtime.h>

// Of `products`: the input and one matrix, whose rows are float32.
struct router_product : products {
    float * normed;  // takes the input as it is multiplied, columns n_weights apart
};

cudaError_t launch_router(const router_product & p, const product_card & card, cudaStream_t stream);
