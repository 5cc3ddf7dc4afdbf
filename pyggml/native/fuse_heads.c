#include "fuse_heads.h"

#include "fuse_products.h"

#include "ggml-impl.h"

#include <string.h>

// Q or K from its product on: [bias,] [norm by head,] rope.
static const struct ggml_tensor * take_rope(pg_fuse_run * r, pg_fused_product * product, const struct ggml_tensor ** norm_weight, float * eps) {
    pg_take_addition(r, product, true);
    const struct ggml_tensor * heads = product->out;
    const struct ggml_tensor * norm = pg_fuse_take(r, GGML_OP_RMS_NORM);
    if (norm) {
        const struct ggml_tensor * weighted = pg_fuse_take(r, GGML_OP_MUL);
        if (!weighted || weighted->src[0] != norm || pg_behind(norm->src[0]) != heads || !pg_is_plain(weighted->src[1]) ||
            ggml_nelements(weighted->src[1]) != norm->ne[0]) {
            return NULL;
        }
        memcpy(eps, norm->op_params, sizeof(float));
        *norm_weight = weighted->src[1];
        heads = weighted;
    }
    const struct ggml_tensor * rope = pg_fuse_take(r, GGML_OP_ROPE);
    product->out = NULL;
    // Some models norm all heads of a token together.
    const bool is_by_head = rope && (!norm || norm->ne[0] == rope->ne[0]);
    return is_by_head && pg_behind(rope->src[0]) == heads && rope->type == GGML_TYPE_F32 ? rope : NULL;
}

static const struct ggml_tensor * take_store(pg_fuse_run * r, const struct ggml_tensor * rows, const struct ggml_tensor * indices) {
    const struct ggml_tensor * store = pg_fuse_take(r, GGML_OP_SET_ROWS);
    const bool fits_store = store && pg_behind(store->src[0]) == rows && store->type == GGML_TYPE_F16 && store->src[1]->type == GGML_TYPE_I64 &&
                            (!indices || store->src[1] == indices) && store->ne[2] == 1 && store->ne[3] == 1 && store->nb[0] == 2;
    if (!fits_store || ggml_nelements(store->src[1]) != store->src[0]->ne[1]) {
        return NULL;
    }
    pg_fuse_write(r, store);
    return store;
}

static bool has_same_rope(const struct ggml_tensor * q, const struct ggml_tensor * k) {
    const int mode = ggml_get_op_params_i32(q, 2);
    return memcmp(q->op_params, k->op_params, sizeof(q->op_params)) == 0 && q->src[1] == k->src[1] && q->src[2] == k->src[2] &&
           (mode == GGML_ROPE_TYPE_NORMAL || mode == GGML_ROPE_TYPE_NEOX) && q->ne[0] == k->ne[0] && q->ne[2] == k->ne[2] &&
           q->ne[3] == 1 && q->ne[0] <= 256 && q->ne[0] % 2 == 0 && ggml_get_op_params_i32(q, 15) == 0 && pg_is_plain(q);
}

bool pg_take_heads(pg_fuse_run * r, const struct ggml_tensor * input, pg_fused_products * p, pg_fused_heads * h) {
    float q_eps = 0, k_eps = 0;
    const struct ggml_tensor * q = take_rope(r, &p->product[0], &h->q_norm, &q_eps);
    const struct ggml_tensor * k = q && pg_take_product(r, input, p) ? take_rope(r, &p->product[1], &h->k_norm, &k_eps) : NULL;
    h->k_rows = k ? take_store(r, k, NULL) : NULL;
    if (!h->k_rows || !pg_take_product(r, input, p)) {
        return false;
    }
    pg_take_addition(r, &p->product[2], true);
    h->v_rows = take_store(r, p->product[2].out, h->k_rows->src[1]);
    p->product[2].out = NULL;
    h->rope = q;
    h->eps = q_eps;
    h->head_dim = (int) q->ne[0];
    // Positions, rows and weights are read while earlier kernels still run.
    const bool is_constant = pg_is_constant(q->src[1]) && pg_is_constant(q->src[2]) && pg_is_constant(h->k_rows->src[1]) &&
                             pg_is_constant(h->q_norm) && pg_is_constant(h->k_norm);
    const bool has_tables = h->v_rows && !pg_overlap(h->k_rows, h->v_rows);  // which are written in no order
    return is_constant && has_tables && has_same_rope(q, k) && q_eps == k_eps && !h->q_norm == !h->k_norm;
}
