// Attention of few tokens over a float16 cache as one launch; plain data, filled by the host. Strides of q, k and v are
// in bytes, those of the mask in elements.
#pragma once

#include <cstdint>

constexpr int ATTENTION_QUERIES = 16;  // a block: heads of a group times tokens
constexpr int ATTENTION_TILE = 16;     // rows of the cache that a warp takes at once
constexpr int MAX_SPLITS = 128;        // blocks that share the rows of a window

struct head_rows {
    const char * data;
    int64_t row, head, seq;
};

struct attention {
    head_rows q;  // float32, a row a token
    head_rows k;  // float16
    head_rows v;
    const uint16_t * mask;  // float16 [n_mask_seq][tokens][n_kv], or nullptr
    int64_t mask_row, mask_seq;
    const float * sinks;  // one a head, or nullptr
    float * out;          // [n_seq][n_tokens][n_head][head_dim]
    float * parts;        // attention_floats() to work in
    unsigned * n_ended;   // a block group's blocks that have ended; 0 between launches
    int n_kv, n_tokens, n_head, n_head_kv, n_seq, n_mask_seq, head_dim;
    int n_splits;   // set by the launch
    bool can_skip;  // the mask can be read by tiles
    bool lets_next_start;
    float scale, softcap;
};

// Queries of one head of the cache, in blocks; a token's heads lie beside each other.
static inline int n_query_tiles(const attention & p) {
    return (p.n_head / p.n_head_kv * p.n_tokens + ATTENTION_QUERIES - 1) / ATTENTION_QUERIES;
}

// Blocks that read the same rows for the same queries are a group.
static inline int n_block_groups(const attention & p) {
    return p.n_head_kv * n_query_tiles(p) * p.n_seq;
}
