// Q, K and V of few tokens on their way to attention; plain data.
#pragma once

#include <cstdint>

struct head_part {
    const float * from;  // [token][rows]
    const float * norm;  // [head_dim] or nullptr
    int n_rows;          // a token
};

struct heads {
    head_part q, k, v;
    float * q_out;  // [token][n_head * head_dim]
    uint16_t * k_cache;
    uint16_t * v_cache;
    int64_t k_stride, v_stride;  // elements a row
    const int64_t * rows;        // of the cache, one a token
    const int32_t * positions;
    const float * freq_factors;
    int n_tokens, head_dim, n_dims;
    bool is_neox, lets_next_start;
    float eps, theta_scale, freq_scale, ext_factor, attn_factor, low_dim, high_dim;
};
