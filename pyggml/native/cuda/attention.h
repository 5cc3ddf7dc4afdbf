// Attention of one token of each sequence, which takes Q, K and V as the products gave them; plain data.
#pragma once

#include "heads.h"

constexpr int ATTENTION_BLOCKS = 8;      // of a cluster, which share the rows of a window
constexpr int ATTENTION_WARPS = 4;       // of a block
constexpr int ATTENTION_ROWS = 32;       // a block takes at once
constexpr int ATTENTION_CLUSTER_ROWS = ATTENTION_BLOCKS * ATTENTION_ROWS;
constexpr int ATTENTION_MAX_CLUSTERS = 16;
constexpr int ATTENTION_MAX_COUNTERS = 8192;
constexpr int ATTENTION_FOUND = 34;      // floats: 32 sums, the largest score, the sum of weights
constexpr int ATTENTION_MAX_HEADS = 8;   // of Q, that one cluster does

struct attention {
    heads from;           // q_out is not written; n_tokens is the number of sequences
    const uint16_t * k;   // the window of sequence 0: [n_kv][row of the cache]
    const uint16_t * v;
    const uint16_t * mask;  // [n_kv]
    const float * sinks;    // [n_head] or nullptr
    float * out;            // [sequence][n_head][head_dim]
    int64_t k_sequence, v_sequence, mask_sequence;  // elements to the next one
    int64_t first_row, sequence_rows;               // of the cache: the window's first, and to the next sequence's
    int n_kv;       // a multiple of ATTENTION_CLUSTER_ROWS
    int n_head, n_group;      // heads of Q; those that share one of K
    int n_parts, n_together;  // of a group's heads, and heads of each, at most
    // Clusters that share a window, with room for what they find and counters that are 0, one for 32 elements each; see
    // attention_clusters.
    int n_clusters;
    float * found;
    unsigned * n_found;
    float scale, softcap;  // the scale is over the cap, if there is one
};

constexpr int attention_parts(int n_group) {
    return (n_group + ATTENTION_MAX_HEADS - 1) / ATTENTION_MAX_HEADS;
}

// Clusters for each window: no more than there are rows for, and blocks on at most half of the processors. With more, some
// would have two, beside which products find no room.
constexpr int attention_clusters(int n_sequences, int n_head, int n_group, int head_dim, int n_kv, int n_processors) {
    const int n_blocks = n_sequences * (n_head / n_group) * attention_parts(n_group) * ATTENTION_BLOCKS;
    const int wanted = n_processors / 2 / n_blocks, n_whole = n_kv / ATTENTION_CLUSTER_ROWS;
    const int n = wanted < n_whole ? wanted : n_whole;
    const bool has_counters = n_sequences * n_head * (head_dim / 32) <= ATTENTION_MAX_COUNTERS;
    return n <= 1 || !has_counters ? 1 : n < ATTENTION_MAX_CLUSTERS ? n : ATTENTION_MAX_CLUSTERS;
}
