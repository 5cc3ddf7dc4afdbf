// What one launch of products with chosen experts computes; plain data, filled by the host. Each token has its own n_used
// experts of the n_expert matrices that lie one behind the other; `ids` says which.
// With a gate: out = gate(W0 x, W1 x), a row for each token and expert. Without: the sum over a token's experts of
// weight * W0 x + residual, a row for each token, x being a row for each token and expert.
#pragma once

#include "products.h"

constexpr int MAX_CHOSEN = 128;  // experts of all tokens

// Of `products`: the matrices of expert 0, x (no norm, no addend), out and residual by its row's number, n_columns tokens.
struct expert_products : products {
    const int32_t * ids;    // of a token n_used beside each other
    const float * weights;  // the same
    int64_t ids_stride;     // between tokens
    int64_t weights_stride;
    int32_t * kept_ids;  // where a gated launch keeps both for the next one, without gaps
    float * kept_weights;
    int64_t expert_bytes;
    int n_used;
    int n_experts;
    int n_result_tiles;  // tiles that make up one row of results
    matrix_boxes boxes;
};
