// A run is known by its node alone: sizes and addresses, which a window changes when it moves, are read at each launch.

#include "fuse_attention.h"

#include "ggml-impl.h"

#include <string.h>

#define MAX_ROWS_OF_BLOCKS 65535  // CUDA's limit

// Rows of one type that are read by 16 bytes, wherever they lie.
static bool has_rows(const struct ggml_tensor * t, enum ggml_type type) {
    return t->type == type && t->nb[0] == ggml_type_size(type) && t->nb[1] % 16 == 0 && t->nb[2] % 16 == 0 && t->nb[3] % 16 == 0 &&
           (size_t) t->data % 16 == 0;
}

static bool has_kernel(int64_t head_dim) {
    return head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 112 || head_dim == 128 || head_dim == 256;
}

static bool has_plain_options(const struct ggml_tensor * node) {
    float max_bias;
    memcpy(&max_bias, node->op_params + 1, sizeof(float));
    return max_bias == 0.0f && ggml_get_op_params_i32(node, 4) == 0;  // ALiBi, a bound on the window
}

static bool fits(const struct ggml_tensor * node) {
    const struct ggml_tensor * q = node->src[0], * k = node->src[1], * v = node->src[2], * mask = node->src[3], * sinks = node->src[4];
    const bool is_shaped = has_kernel(q->ne[0]) && v->ne[0] == k->ne[0] && k->ne[0] == q->ne[0] && v->ne[1] == k->ne[1] &&
                           v->ne[2] == k->ne[2] && q->ne[2] % k->ne[2] == 0 && q->ne[3] == k->ne[3] && q->ne[3] == v->ne[3];
    const bool is_small = q->ne[1] <= PG_FUSED_MAX_TOKENS && q->ne[2] * q->ne[1] <= MAX_ROWS_OF_BLOCKS && q->ne[3] <= MAX_ROWS_OF_BLOCKS;
    const bool has_mask = !mask || (mask->type == GGML_TYPE_F16 && ggml_is_contiguous(mask) && mask->ne[2] == 1 &&
                                    q->ne[3] % mask->ne[3] == 0);
    const bool has_sinks = !sinks || (sinks->type == GGML_TYPE_F32 && ggml_is_contiguous(sinks));
    return is_shaped && is_small && has_mask && has_sinks && has_plain_options(node) && has_rows(q, GGML_TYPE_F32) &&
           has_rows(k, GGML_TYPE_F16) && has_rows(v, GGML_TYPE_F16) && node->type == GGML_TYPE_F32 && ggml_is_contiguous(node) &&
           (size_t) node->data % 16 == 0;
}

bool pg_match_attention(pg_fuse_run * r, pg_fused * out) {
    const struct ggml_tensor * node = pg_fuse_take(r, GGML_OP_FLASH_ATTN_EXT);
    if (!node || !fits(node)) {
        return false;
    }
    while (r->at < r->stop && pg_is_free(r->graph->nodes[r->at])) {
        r->at++;
    }
    out->attention = node;
    return true;
}
