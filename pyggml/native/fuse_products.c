// A run is taken if no result lies where another block of the same launch may still read.

#include "fuse_products.h"

#include "fuse_attention.h"
#include "fuse_heads.h"
#include "fuse_parts.h"

#include "ggml-impl.h"

#include <string.h>

bool pg_has_kernel(const struct ggml_tensor * w) {
    if (!ggml_is_contiguous(w) || w->ne[1] < 16) {
        return false;
    }
    switch (w->type) {
        case GGML_TYPE_Q8_0: return w->ne[0] % 64 == 0 && (size_t) w->data % 4 == 0;
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K: return (size_t) w->data % 16 == 0;
        case GGML_TYPE_Q6_K: return (size_t) w->data % 2 == 0;
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_MXFP4: return (size_t) w->data % 4 == 0;
        default: return false;
    }
}

static bool is_one_matrix(const struct ggml_tensor * w) {
    return w->ne[2] == 1 && w->ne[3] == 1 && pg_is_constant(w) && pg_has_kernel(w);
}

// One column in shared memory, beside the weights on their way; several can come with the weights.
static bool fits(const pg_fused_products * p) {
    const int64_t max_bytes = 150 * 1024;
    const int64_t max_normed = 8192;  // which registers hold
    const int64_t n_weights = p->x->ne[0], n_columns = p->x->ne[1];
    if (p->is_normed && n_weights > max_normed) {
        return false;
    }
    return n_columns == 1 ? n_weights * 5 / 4 <= max_bytes : n_columns <= PG_FUSED_MAX_COLUMNS;
}

static bool is_measured(const struct ggml_tensor * w) {
    return w->type == GGML_TYPE_Q8_0 || w->type == GGML_TYPE_Q4_K || w->type == GGML_TYPE_Q5_K || w->type == GGML_TYPE_Q6_K;
}

static bool is_wanted(const pg_fused_products * p) {
    for (int i = 0; i < p->n_products; i++) {
        if (!is_measured(p->product[i].weight) && !pg_fuse_takes("types")) {
            return false;
        }
    }
    return pg_fuse_takes(p->x->ne[1] == 1 ? "products" : "columns");
}

const struct ggml_tensor * pg_take_input(pg_fuse_run * r, pg_fused_products * p) {
    const pg_fuse_run start = *r;
    const struct ggml_tensor * add = pg_fuse_take(r, GGML_OP_ADD);
    const struct ggml_tensor * norm = pg_fuse_take(r, GGML_OP_RMS_NORM);
    const struct ggml_tensor * weighted = norm ? pg_fuse_take(r, GGML_OP_MUL) : NULL;
    if (!weighted || weighted->src[0] != norm) {
        *r = start;
        const struct ggml_tensor * product = pg_fuse_peek(r, GGML_OP_MUL_MAT);
        p->x = product ? product->src[1] : NULL;
        return p->x;
    }
    p->x = norm->src[0];
    p->is_normed = true;
    memcpy(&p->eps, norm->op_params, sizeof(float));
    p->norm_weight = weighted->src[1];
    if (add) {
        if (norm->src[0] != add || !ggml_are_same_shape(add->src[0], add->src[1]) || !pg_is_plain(add->src[1])) {
            return NULL;
        }
        p->x = add->src[0];
        p->addend = add->src[1];
        p->sum = add;
        pg_fuse_write(r, add);
    }
    const bool is_row = pg_is_plain(p->norm_weight) && pg_is_constant(p->norm_weight) && ggml_nelements(p->norm_weight) == p->x->ne[0];
    return is_row ? weighted : NULL;
}

bool pg_take_product(pg_fuse_run * r, const struct ggml_tensor * input, pg_fused_products * p) {
    const struct ggml_tensor * node = pg_fuse_peek(r, GGML_OP_MUL_MAT);
    if (!node || node->src[1] != input || !is_one_matrix(node->src[0]) || p->n_products == PG_FUSED_MAX_PRODUCTS) {
        return false;
    }
    pg_fuse_take(r, GGML_OP_MUL_MAT);
    p->product[p->n_products++] = (pg_fused_product) { .weight = node->src[0], .out = node };
    return true;
}

void pg_take_addition(pg_fuse_run * r, pg_fused_product * p, bool is_bias) {
    const struct ggml_tensor * add = pg_fuse_peek(r, GGML_OP_ADD);
    if (!add || (add->src[0] != p->out && add->src[1] != p->out) || add->src[0] == add->src[1]) {
        return;
    }
    const struct ggml_tensor * other = add->src[add->src[0] == p->out];
    const bool fits_rows = pg_is_plain(other) && !pg_fuse_has(r, other) &&
                           (is_bias ? ggml_nelements(other) == p->out->ne[0] : ggml_are_same_shape(other, p->out));
    if (fits_rows) {
        pg_fuse_take(r, GGML_OP_ADD);
        *(is_bias ? &p->bias : &p->residual) = other;
        p->out = add;
    }
}

enum pg_gate pg_gate_of(const struct ggml_tensor * glu) {
    switch (ggml_get_glu_op(glu)) {
        case GGML_GLU_OP_SWIGLU: return PG_GATE_SWIGLU;
        case GGML_GLU_OP_GEGLU: return PG_GATE_GEGLU;
        default: return PG_GATE_NONE;
    }
}

// Two products and what joins them.
static bool take_gate(pg_fuse_run * r, const struct ggml_tensor * input, pg_fused_products * p) {
    const pg_fuse_run start = *r;
    const struct ggml_tensor * glu = pg_take_product(r, input, p) ? pg_fuse_peek(r, GGML_OP_GLU) : NULL;
    const pg_fused_product * product = p->product;
    if (glu && glu->src[0] == product[0].out && glu->src[1] == product[1].out && pg_gate_of(glu) != PG_GATE_NONE &&
        product[0].weight->type == product[1].weight->type && ggml_are_same_shape(product[0].weight, product[1].weight) &&
        ggml_get_op_params_i32(glu, 1) == 0) {
        pg_fuse_take(r, GGML_OP_GLU);
        p->gate = pg_gate_of(glu);
        p->product[0].out = glu;
        p->product[1].out = NULL;
        return true;
    }
    *r = start;
    p->n_products = 1;
    return false;
}

// What heads end with: attention, or Q for whoever attends or reads it too.
static void take_end_of_heads(pg_fuse_run * r, pg_fused_heads * h) {
    const pg_fuse_run heads = *r;
    if (!r->may_attend || !pg_take_attention(r, h)) {
        *r = heads;
        pg_fuse_write(r, h->rope);
    }
}

// Blocks read x whole and at their own time, so no result may lie in it; a sum is written after all have read.
static bool is_safe(const pg_fused_products * p) {
    for (int i = 0; i < p->n_products; i++) {
        const pg_fused_product * of = &p->product[i];
        if (pg_overlap(of->out, p->x) || pg_overlap(of->out, p->addend) || pg_overlap(of->out, p->sum)) {
            return false;
        }
        if (pg_overlap(of->out, of->residual) && of->out->data != of->residual->data) {
            return false;
        }
        for (int k = 0; k < p->n_products; k++) {
            if (k != i && (pg_overlap(of->out, p->product[k].out) || pg_overlap(of->out, p->product[k].residual))) {
                return false;
            }
        }
    }
    return true;
}

bool pg_match_products(pg_fuse_run * r, pg_fused * out) {
    pg_fused_products * p = &out->products;
    const struct ggml_tensor * input = pg_take_input(r, p);
    const bool is_input = input && pg_is_plain(p->x) && p->x->ne[2] == 1 && p->x->ne[3] == 1 && fits(p);
    if (!is_input || !pg_take_product(r, input, p)) {
        return false;
    }
    const pg_fuse_run start = *r;
    const pg_fused_products one = *p;
    out->has_heads = pg_take_heads(r, input, p, &out->heads);
    if (out->has_heads) {
        take_end_of_heads(r, &out->heads);
    } else {
        *r = start;
        *p = one;
        if (!take_gate(r, input, p)) {
            pg_take_addition(r, &p->product[0], true);
            pg_take_addition(r, &p->product[0], false);
        }
        pg_fuse_write(r, p->product[0].out);
    }
    return pg_fuse_is_closed(r) && is_safe(p) && is_wanted(p);
}
