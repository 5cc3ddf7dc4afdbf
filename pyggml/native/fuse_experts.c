// Gate and up (in any order), what joins them, down, the router's weights, and the sum over the chosen: a view of each
// one's results, added one after the other.

#include "fuse_experts.h"

#include "fuse_products.h"

#include "ggml-impl.h"

// What one of gate, up and down multiplies is as it should be.
static bool is_matrix(const struct ggml_tensor * node) {
    return node && pg_has_kernel(node->src[0]) && node->src[0]->ne[3] == 1;
}

// The chosen number `place` of each token, of [n_embd, n_used, n_tokens].
static bool is_place(const struct ggml_tensor * t, const struct ggml_tensor * of, int64_t place) {
    return t->op == GGML_OP_VIEW && t->view_src == of && t->view_offs == place * of->nb[1] && t->ne[0] == of->ne[0] &&
           t->ne[1] == of->ne[2] && ggml_nelements(t) == of->ne[0] * of->ne[2] && t->nb[0] == of->nb[0] && t->nb[1] == of->nb[2];
}

static const struct ggml_tensor * take_sum(pg_fuse_run * r, const struct ggml_tensor * weighted) {
    const int64_t n_used = weighted->ne[1];
    const struct ggml_tensor * sum = n_used == 1 ? pg_fuse_take(r, GGML_OP_CONT) : pg_fuse_take(r, GGML_OP_ADD);
    if (!sum || !is_place(sum->src[0], weighted, 0) || (n_used > 1 && !is_place(sum->src[1], weighted, 1))) {
        return NULL;
    }
    for (int64_t place = 2; place < n_used; place++) {
        const struct ggml_tensor * before = sum;
        sum = pg_fuse_take(r, GGML_OP_ADD);
        if (!sum || sum->src[0] != before || !is_place(sum->src[1], weighted, place)) {
            return NULL;
        }
    }
    return sum;
}

// Gate, up and what joins them; that.
static const struct ggml_tensor * take_hidden(pg_fuse_run * r, pg_fused_experts * e) {
    const struct ggml_tensor * first = pg_fuse_take(r, GGML_OP_MUL_MAT_ID);
    const struct ggml_tensor * second = pg_fuse_take(r, GGML_OP_MUL_MAT_ID);
    const struct ggml_tensor * glu = pg_fuse_take(r, GGML_OP_GLU);
    if (!is_matrix(first) || !is_matrix(second) || !glu || first == second || first->src[1] != second->src[1] ||
        first->src[2] != second->src[2]) {
        return NULL;
    }
    const bool is_in_order = glu->src[0] == first && glu->src[1] == second;
    if (!is_in_order && (glu->src[0] != second || glu->src[1] != first)) {
        return NULL;
    }
    e->x = first->src[1];
    e->ids = first->src[2];
    e->gate = glu->src[0]->src[0];
    e->up = glu->src[1]->src[0];
    e->kind = pg_gate_of(glu);
    const bool is_pair = e->gate->type == e->up->type && ggml_are_same_shape(e->gate, e->up);
    return is_pair && e->kind != PG_GATE_NONE && ggml_get_op_params_i32(glu, 1) == 0 ? glu : NULL;
}

static bool has_few_tokens(const pg_fused_experts * e) {
    const int64_t n_used = e->ids->ne[0], n_tokens = e->ids->ne[1];
    const bool is_one_row = e->x->ne[1] == 1 && e->x->ne[2] == n_tokens && e->x->ne[3] == 1;
    const bool is_choice = e->ids->type == GGML_TYPE_I32 && e->ids->nb[0] == sizeof(int32_t) && ggml_nelements(e->ids) == n_used * n_tokens;
    return is_one_row && is_choice && n_tokens <= PG_FUSED_MAX_TOKENS && n_used * n_tokens <= PG_FUSED_MAX_CHOSEN;
}

// Activations in shared memory, in whole units of 256, beside the weights on their way.
static bool fits(const pg_fused_experts * e) {
    const int64_t max_bytes = 150 * 1024;
    const int64_t n_wide = e->ids->ne[1] * GGML_PAD(e->gate->ne[0], 256);
    const int64_t n_hidden = ggml_nelements(e->ids) * GGML_PAD(e->down->ne[0], 256);
    return MAX(n_wide, n_hidden) * 5 / 4 <= max_bytes;
}

// Blocks read the residual at their own time; what else is read has been when the second launch writes its first result.
static bool is_safe(const pg_fused_experts * e) {
    return !pg_overlap(e->out, e->residual) || e->out->data == e->residual->data;
}

bool pg_match_experts(pg_fuse_run * r, pg_fused_experts * e) {
    const struct ggml_tensor * hidden = take_hidden(r, e);
    const struct ggml_tensor * down = hidden ? pg_fuse_take(r, GGML_OP_MUL_MAT_ID) : NULL;
    const struct ggml_tensor * weighted = down ? pg_fuse_take(r, GGML_OP_MUL) : NULL;
    if (!weighted || !is_matrix(down) || down->src[1] != hidden || down->src[2] != e->ids || weighted->src[0] != down) {
        return false;
    }
    e->down = down->src[0];
    e->weights = weighted->src[1];
    const bool is_one_each = e->weights->type == GGML_TYPE_F32 && ggml_is_contiguous(e->weights) && e->weights->ne[0] == 1 &&
                             ggml_nelements(e->weights) == ggml_nelements(e->ids);
    if (!is_one_each || !pg_is_plain(e->x) || !has_few_tokens(e) || !fits(e)) {
        return false;
    }
    pg_fused_product sum = { .out = take_sum(r, weighted) };
    if (!sum.out) {
        return false;
    }
    pg_take_addition(r, &sum, false);
    e->residual = sum.residual;
    e->out = sum.out;
    pg_fuse_write(r, e->out);
    return pg_is_plain(e->out) && pg_fuse_is_closed(r) && is_safe(e);
}
