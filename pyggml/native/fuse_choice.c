#include "fuse_choice.h"

#include "ggml-impl.h"

static float parameter(const struct ggml_tensor * node, int i) {
    return ggml_get_op_params_f32(node, i);
}

// Of rows as they are: nothing is added or scaled.
static bool is_plain_softmax(const struct ggml_tensor * node) {
    return !node->src[1] && !node->src[2] && parameter(node, 0) == 1.0f && parameter(node, 1) == 0.0f;
}

static bool is_descending(const struct ggml_tensor * order) {
    return ggml_get_op_params_i32(order, 0) == GGML_SORT_ORDER_DESC;
}

static bool is_start_of(const struct ggml_tensor * t, const struct ggml_tensor * order) {
    return t && t->op == GGML_OP_VIEW && t->view_src == order && t->view_offs == 0 && t->nb[1] == order->nb[1] && t->ne[1] == order->ne[1];
}

// The chosen ones' sum, held to a least, and each one's share of it.
static const struct ggml_tensor * take_share(pg_fuse_run * r, const struct ggml_tensor * weights, pg_fused_experts * e) {
    const struct ggml_tensor * sum = pg_fuse_take(r, GGML_OP_SUM_ROWS);
    const struct ggml_tensor * held = sum ? pg_fuse_take(r, GGML_OP_CLAMP) : NULL;
    const struct ggml_tensor * share = held ? pg_fuse_take(r, GGML_OP_DIV) : NULL;
    if (!share || pg_behind(sum->src[0]) != weights || held->src[0] != sum || pg_behind(share->src[0]) != weights ||
        share->src[1] != held || parameter(held, 1) != INFINITY) {
        return NULL;
    }
    e->is_normalised = true;
    e->least = parameter(held, 0);
    return share;
}

pg_choice pg_take_choice(pg_fuse_run * r, pg_fused_experts * e) {
    const pg_choice none = { NULL, NULL };
    const struct ggml_tensor * shares = pg_fuse_take(r, GGML_OP_SOFT_MAX);
    const struct ggml_tensor * order = shares ? pg_fuse_take(r, GGML_OP_ARGSORT) : NULL;
    const struct ggml_tensor * weights = order ? pg_fuse_take(r, GGML_OP_GET_ROWS) : NULL;
    if (!weights || !is_plain_softmax(shares) || order->src[0] != shares || !is_descending(order) ||
        pg_behind(weights->src[0]) != shares || weights->src[0]->ne[0] != 1 || !is_start_of(weights->src[1], order)) {
        return none;
    }
    const struct ggml_tensor * rated = shares->src[0];
    if (!pg_is_plain(rated) || rated->ne[0] > PG_FUSED_MAX_RATED || rated->ne[2] != 1 || rated->ne[3] != 1) {
        return none;
    }
    if (pg_fuse_peek(r, GGML_OP_SUM_ROWS)) {
        weights = take_share(r, weights, e);
    }
    e->scale = 1.0f;
    const struct ggml_tensor * scaled = weights ? pg_fuse_peek(r, GGML_OP_SCALE) : NULL;
    if (scaled && pg_behind(scaled->src[0]) == weights && parameter(scaled, 1) == 0.0f) {
        weights = pg_fuse_take(r, GGML_OP_SCALE);
        e->scale = parameter(scaled, 0);
    }
    e->rated = rated;
    return weights ? (pg_choice) { order, weights } : none;
}

bool pg_is_of_choice(const pg_choice * choice, const pg_fused_experts * e) {
    return e->rated ? choice->order && is_start_of(e->ids, choice->order) && pg_behind(e->weights) == choice->weights : !choice->order;
}
