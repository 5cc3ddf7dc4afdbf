#include "fuse_attention.h"

#include "ggml-impl.h"

// Rows of a window, and windows of one head of K each; of more, ggml's launches were measured to be faster.
static const int64_t max_rows = 4096, max_rows_of_many = 512;
static const int64_t max_windows = 32;

static const struct ggml_tensor * behind_views(const struct ggml_tensor * t) {
    while (t && pg_is_free(t) && t->src[0]) {
        t = t->src[0];
    }
    return t;
}

// [sequence][head][row][element] of the cache's float16 rows, all of its heads, no row in two sequences.
static bool is_window(const struct ggml_tensor * t, const struct ggml_tensor * store, int head_dim) {
    return behind_views(t) == store && t->type == GGML_TYPE_F16 && t->ne[0] == head_dim && t->nb[0] == sizeof(ggml_fp16_t) &&
           t->nb[1] == store->nb[1] && t->nb[2] == head_dim * sizeof(ggml_fp16_t) && t->nb[3] % store->nb[1] == 0 &&
           t->ne[2] * head_dim == store->ne[0] && (t->ne[3] == 1 || t->nb[3] >= t->ne[1] * t->nb[1]) &&
           ((const char *) t->data - (const char *) store->data) % (ptrdiff_t) store->nb[1] == 0 &&
           t->nb[1] % 16 == 0 && (size_t) store->data % 16 == 0;
}

static int64_t rows_before(const struct ggml_tensor * window, const struct ggml_tensor * store) {
    return ((const char *) window->data - (const char *) store->data) / (int64_t) store->nb[1];
}

static bool is_mask(const struct ggml_tensor * mask, int64_t n_rows, int64_t n_sequences) {
    return mask && mask->type == GGML_TYPE_F16 && ggml_is_contiguous(mask) && pg_is_constant(mask) && mask->ne[0] == n_rows &&
           mask->ne[2] == 1 && (mask->ne[3] == n_sequences || mask->ne[3] == 1);
}

// Blocks read these at their own time, also when others have written their part of the result.
static bool is_apart(const struct ggml_tensor * node, const pg_fused_heads * h) {
    return !pg_overlap(node, h->rope->src[1]) && !pg_overlap(node, h->rope->src[2]) && !pg_overlap(node, h->k_rows->src[1]) &&
           !pg_overlap(node, h->q_norm) && !pg_overlap(node, h->k_norm) && !pg_overlap(node, node->src[3]);
}

// One token of each sequence, whose heads lie one after the other, as rope has them.
static bool is_one_token(const struct ggml_tensor * q, const pg_fused_heads * h) {
    const struct ggml_tensor * rope = h->rope;
    return behind_views(q) == rope && q->ne[0] == h->head_dim && q->ne[1] == 1 && q->ne[2] == rope->ne[1] && q->ne[3] == rope->ne[2] &&
           q->nb[2] == rope->nb[1] && (q->ne[3] == 1 || q->nb[3] == rope->nb[2]);
}

// K and V of the same rows.
static bool are_windows(const struct ggml_tensor * k, const struct ggml_tensor * v, const pg_fused_heads * h) {
    return is_window(k, h->k_rows, h->head_dim) && is_window(v, h->v_rows, h->head_dim) && k->ne[1] == v->ne[1] && k->ne[2] == v->ne[2] &&
           k->ne[3] == v->ne[3] && k->nb[3] / k->nb[1] == v->nb[3] / v->nb[1] && rows_before(k, h->k_rows) == rows_before(v, h->v_rows);
}

// Whether a node before the run writes into a table: earlier tokens' rows are asked for before its kernel has ended. A table
// that is a node's result lies where that node writes.
static bool is_written_before(const pg_fuse_run * r, const struct ggml_tensor * store) {
    for (int i = 0; i < r->first; i++) {
        const struct ggml_tensor * node = r->graph->nodes[i];
        if (!pg_is_free(node) && pg_overlap(node, store)) {
            return true;
        }
    }
    return false;
}

// Heads that there are kernels for; with a lane that has both elements of a pair.
static bool has_kernel(const pg_fused_heads * h) {
    const bool is_neox = ggml_get_op_params_i32(h->rope, 2) == GGML_ROPE_TYPE_NEOX;
    return (h->head_dim == 64 || h->head_dim == 128) && (!is_neox || ggml_get_op_params_i32(h->rope, 1) % 64 == 0);
}

bool pg_take_attention(pg_fuse_run * r, pg_fused_heads * h) {
    const int n_before = r->at - r->first;
    const struct ggml_tensor * node = pg_fuse_take(r, GGML_OP_FLASH_ATTN_EXT);
    if (!node || !has_kernel(h)) {
        return false;
    }
    const struct ggml_tensor * q = node->src[0];
    const struct ggml_tensor * k = node->src[1];
    const struct ggml_tensor * sinks = node->src[4];
    const bool has_shapes = is_one_token(q, h) && are_windows(k, node->src[2], h) && k->ne[1] % PG_FUSED_WINDOW_ROWS == 0 &&
                            k->ne[3] == q->ne[3] && q->ne[2] % k->ne[2] == 0 && is_mask(node->src[3], k->ne[1], q->ne[3]);
    const bool has_alibi = ggml_get_op_params_f32(node, 1) != 0.0f;
    if (!has_shapes || has_alibi || !pg_is_plain(node) || !is_apart(node, h) || (sinks && !(pg_is_plain(sinks) && pg_is_constant(sinks)))) {
        return false;
    }
    pg_fuse_write(r, node);
    if (!pg_fuse_is_closed(r) || is_written_before(r, h->k_rows) || is_written_before(r, h->v_rows)) {
        return false;
    }
    h->attention = node;
    h->n_before_attention = n_before;
    return true;
}

bool pg_fuse_attends(const pg_fused * fused) {
    const struct ggml_tensor * node = fused->has_heads ? fused->heads.attention : NULL;
    if (!node) {
        return false;
    }
    const struct ggml_tensor * k = node->src[1];
    const int64_t n_group = node->src[0]->ne[2] / k->ne[2], n_parts = (n_group + PG_FUSED_MAX_HEADS - 1) / PG_FUSED_MAX_HEADS;
    const int64_t most_rows = n_group > PG_FUSED_MAX_HEADS / 2 ? max_rows_of_many : max_rows;
    return k->ne[1] % PG_FUSED_WINDOW_ROWS == 0 && k->ne[1] <= most_rows && k->ne[2] * k->ne[3] * n_parts <= max_windows;
}
