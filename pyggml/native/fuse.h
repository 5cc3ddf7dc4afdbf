// Runs of a graph's nodes that our CUDA module computes in a few launches, found without CUDA.
// Tensors are those of the graph; what lies between them is never written.
#pragma once

#include "ggml.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PG_FUSED_MAX_PRODUCTS 3
#define PG_FUSED_MAX_COLUMNS 16
#define PG_FUSED_MAX_TOKENS 8    // of routers and experts
#define PG_FUSED_MAX_CHOSEN 128  // experts, of all columns
#define PG_FUSED_WINDOW_ROWS 256  // attention's windows are a multiple of it
#define PG_FUSED_MAX_HEADS 8      // of Q, on one of K, that attention does together

enum pg_gate { PG_GATE_NONE = 0, PG_GATE_SWIGLU = 1, PG_GATE_GEGLU = 2 };

// out = weight . input + bias + residual. Without out the result stays in the module's memory, for pg_fused_heads.
typedef struct {
    const struct ggml_tensor * weight;
    const struct ggml_tensor * bias;
    const struct ggml_tensor * residual;
    const struct ggml_tensor * out;
} pg_fused_product;

// Products of one input: x, or the sum of x and addend (which `sum` takes), normed and weighted if told so.
// Where others read the products' input too, `normed` takes it; there is one product then, a router's, of float32.
// With a gate: product[0].out = gate(product[0], product[1]), both of one type; else types may differ.
typedef struct {
    const struct ggml_tensor * x;
    const struct ggml_tensor * addend;
    const struct ggml_tensor * sum;
    const struct ggml_tensor * norm_weight;
    const struct ggml_tensor * normed;
    bool is_normed;
    float eps;
    enum pg_gate gate;
    int n_products;
    pg_fused_product product[PG_FUSED_MAX_PRODUCTS];
} pg_fused_products;

// Q, K and V as the products gave them, one after the other: Q and K normed by head and rotated, K and V stored.
typedef struct {
    const struct ggml_tensor * q_norm;
    const struct ggml_tensor * k_norm;
    float eps;
    const struct ggml_tensor * rope;  // of Q: its parameters, positions and where Q goes
    const struct ggml_tensor * k_rows;  // the nodes that write the cache
    const struct ggml_tensor * v_rows;
    int head_dim;
    // The node that attends with them, one token a sequence, or NULL. With it the rotated Q is not written.
    const struct ggml_tensor * attention;
    int n_before_attention;  // nodes of the run, where attention is not taken after all
} pg_fused_heads;

// For each token, out = residual + the sum over its chosen experts of weight * (down . gate(gate . x, up . x)).
typedef struct {
    const struct ggml_tensor * x;
    const struct ggml_tensor * ids;
    const struct ggml_tensor * weights;
    const struct ggml_tensor * gate;  // matrices of all experts
    const struct ggml_tensor * up;
    const struct ggml_tensor * down;
    enum pg_gate kind;
    const struct ggml_tensor * residual;
    const struct ggml_tensor * out;
} pg_fused_experts;

// Products, with heads or not, or experts.
typedef struct {
    int n_nodes;
    bool has_heads;
    bool is_experts;
    // Whether a launch of ours comes next, which then may start while this one still runs. ggml's kernels, started so, take
    // the place of ours that come behind them: llama-8b lost a seventh of its speed.
    bool is_before_ours;
    bool is_behind_ours;  // a launch of ours came before
    bool is_before_sum;   // the launch of ours that comes next is a sum over ranks
    pg_fused_products products;
    pg_fused_heads heads;
    pg_fused_experts experts;
} pg_fused;

// Whether nodes of the laid-out graph from `first` on, before `stop`, can be computed as one; the number of nodes, or 0.
// may_attend: the card has our attention. Addresses count: a run whose result would overwrite what another part of it still reads is none.
int pg_fuse_match(const struct ggml_cgraph * graph, int first, int stop, bool may_attend, pg_fused * out);

// Whether our attention is the faster one for the window as it is now: windows move and grow between launches.
bool pg_fuse_attends(const pg_fused * fused);

#ifdef __cplusplus
}
#endif
