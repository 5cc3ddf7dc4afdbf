// A run starts with [add,] rms_norm, mul, or at once with a product. It is taken only if every node in it that is not
// written has no reader outside, and if no result lies where another block of the same launch may still read.
// PYGGML_FUSED in the environment: 0 switches all off, `all` takes also what was measured to be no faster.

#include "fuse.h"

#include "ggml-impl.h"

#include <stdlib.h>
#include <string.h>

#define MAX_WRITTEN 8

// The run so far: nodes [first, at) are taken.
typedef struct {
    const struct ggml_cgraph * graph;
    int first, at, stop;
    const struct ggml_tensor * written[MAX_WRITTEN];
    int n_written;
} run;

static bool is_free(const struct ggml_tensor * t) {
    return t->op == GGML_OP_NONE || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_VIEW || t->op == GGML_OP_PERMUTE ||
           t->op == GGML_OP_TRANSPOSE;
}

// The tensor behind views that keep all elements in order.
static const struct ggml_tensor * behind(const struct ggml_tensor * t) {
    while (t && t->op == GGML_OP_RESHAPE) {
        t = t->src[0];
    }
    return t;
}

static const struct ggml_tensor * peek(const run * r, enum ggml_op op) {
    for (int i = r->at; i < r->stop; i++) {
        const struct ggml_tensor * node = r->graph->nodes[i];
        if (!is_free(node)) {
            return node->op == op ? node : NULL;
        }
    }
    return NULL;
}

static const struct ggml_tensor * take(run * r, enum ggml_op op) {
    const struct ggml_tensor * node = peek(r, op);
    if (node) {
        while (r->graph->nodes[r->at] != node) {
            r->at++;
        }
        r->at++;
    }
    return node;
}

static void write(run * r, const struct ggml_tensor * t) {
    r->written[r->n_written++] = t;
}

// Read and written by 16 bytes.
static bool is_plain(const struct ggml_tensor * t) {
    return t && t->type == GGML_TYPE_F32 && ggml_is_contiguous(t) && (size_t) t->data % 16 == 0;
}

static bool is_in_run(const run * r, const struct ggml_tensor * t) {
    for (int i = r->first; i < r->at; i++) {
        if (r->graph->nodes[i] == t) {
            return true;
        }
    }
    return false;
}

static bool is_written(const run * r, const struct ggml_tensor * t) {
    for (int i = 0; i < r->n_written; i++) {
        if (r->written[i] == t) {
            return true;
        }
    }
    return false;
}

static bool is_closed(const run * r) {
    for (int i = r->first; i < r->at; i++) {
        const struct ggml_tensor * node = r->graph->nodes[i];
        const struct ggml_tensor * root = node;
        while (is_free(root) && root->src[0]) {
            root = root->src[0];
        }
        if (is_written(r, root) || !is_in_run(r, root)) {
            continue;
        }
        int n_uses = 0;
        for (int k = r->first; k < r->at; k++) {
            for (int s = 0; s < GGML_MAX_SRC; s++) {
                n_uses += r->graph->nodes[k]->src[s] == node;
            }
        }
        if (n_uses != ggml_node_get_use_count(r->graph, i) || (node->flags & GGML_TENSOR_FLAG_OUTPUT)) {
            return false;
        }
    }
    return true;
}

static bool overlap(const struct ggml_tensor * a, const struct ggml_tensor * b) {
    if (!a || !b) {
        return false;
    }
    const char * a0 = a->data;
    const char * b0 = b->data;
    return a0 < b0 + ggml_nbytes(b) && b0 < a0 + ggml_nbytes(a);
}

static bool has_kernel(const struct ggml_tensor * w) {
    const bool is_matrix = w->ne[2] == 1 && w->ne[3] == 1 && ggml_is_contiguous(w) && w->ne[1] >= 16;
    switch (w->type) {
        case GGML_TYPE_Q8_0: return is_matrix && w->ne[0] % 64 == 0 && (size_t) w->data % 4 == 0;
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K: return is_matrix && (size_t) w->data % 16 == 0;
        case GGML_TYPE_Q6_K: return is_matrix && (size_t) w->data % 2 == 0;
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_MXFP4: return is_matrix && (size_t) w->data % 4 == 0;
        default: return false;
    }
}

// Activations in shared memory, beside the weights on their way.
static bool fits(const pg_fused_products * p) {
    const int64_t max_bytes = 150 * 1024;
    const int64_t max_normed = 8192;  // which registers hold
    const int64_t n_weights = p->x->ne[0], n_columns = p->x->ne[1];
    if (p->is_normed && n_weights > max_normed) {
        return false;
    }
    const int64_t n_places = n_columns <= 2 ? n_columns : n_columns <= 4 ? 4 : 8;
    return n_columns <= PG_FUSED_MAX_COLUMNS && n_places * n_weights * 5 / 4 <= max_bytes;
}

static bool is_measured(const struct ggml_tensor * w) {
    return w->type == GGML_TYPE_Q8_0 || w->type == GGML_TYPE_Q4_K || w->type == GGML_TYPE_Q5_K || w->type == GGML_TYPE_Q6_K;
}

// Whether it is faster than ggml's kernels, as measured on an H200: several columns make every block's own rounding of the
// activations dear, which large matrices and what else a run saves make up for.
static bool pays(const pg_fused_products * p, bool has_heads) {
    const int64_t n_columns = p->x->ne[1];
    int64_t n_rows = 0;
    bool is_packed = true;  // so that unpacking weights is a good part of the work
    for (int i = 0; i < p->n_products; i++) {
        n_rows += p->product[i].weight->ne[1];
        is_packed &= p->product[i].weight->type != GGML_TYPE_Q8_0;
        if (!is_measured(p->product[i].weight)) {
            return false;
        }
    }
    return n_columns == 1 || (is_packed && (n_rows >= (has_heads ? 6000 : 8192) || (has_heads && n_columns <= 4)));
}

// [add,] rms_norm, mul, or none of them; the tensor that the products read.
static const struct ggml_tensor * take_input(run * r, pg_fused_products * p) {
    const run start = *r;
    const struct ggml_tensor * add = take(r, GGML_OP_ADD);
    const struct ggml_tensor * norm = take(r, GGML_OP_RMS_NORM);
    const struct ggml_tensor * weighted = norm ? take(r, GGML_OP_MUL) : NULL;
    if (!weighted || weighted->src[0] != norm) {
        *r = start;
        const struct ggml_tensor * product = peek(r, GGML_OP_MUL_MAT);
        p->x = product ? product->src[1] : NULL;
        return p->x;
    }
    p->x = norm->src[0];
    p->is_normed = true;
    memcpy(&p->eps, norm->op_params, sizeof(float));
    p->norm_weight = weighted->src[1];
    if (add) {
        if (norm->src[0] != add || !ggml_are_same_shape(add->src[0], add->src[1]) || !is_plain(add->src[1])) {
            return NULL;
        }
        p->x = add->src[0];
        p->addend = add->src[1];
        p->sum = add;
        write(r, add);
    }
    const bool is_row = is_plain(p->norm_weight) && ggml_nelements(p->norm_weight) == p->x->ne[0];
    return is_row ? weighted : NULL;
}

static bool take_product(run * r, const struct ggml_tensor * input, pg_fused_products * p) {
    const struct ggml_tensor * node = peek(r, GGML_OP_MUL_MAT);
    if (!node || node->src[1] != input || !has_kernel(node->src[0]) || p->n_products == PG_FUSED_MAX_PRODUCTS) {
        return false;
    }
    take(r, GGML_OP_MUL_MAT);
    p->product[p->n_products++] = (pg_fused_product) { .weight = node->src[0], .out = node };
    return true;
}

// An add of one row for all columns, or of as many.
static void take_addition(run * r, pg_fused_product * p, bool is_bias) {
    const struct ggml_tensor * add = peek(r, GGML_OP_ADD);
    if (!add || (add->src[0] != p->out && add->src[1] != p->out) || add->src[0] == add->src[1]) {
        return;
    }
    const struct ggml_tensor * other = add->src[add->src[0] == p->out];
    const bool fits_rows = is_plain(other) && !is_in_run(r, other) &&
                           (is_bias ? ggml_nelements(other) == p->out->ne[0] : ggml_are_same_shape(other, p->out));
    if (fits_rows) {
        take(r, GGML_OP_ADD);
        *(is_bias ? &p->bias : &p->residual) = other;
        p->out = add;
    }
}

static enum pg_gate gate_of(const struct ggml_tensor * glu) {
    switch (ggml_get_glu_op(glu)) {
        case GGML_GLU_OP_SWIGLU: return PG_GATE_SWIGLU;
        case GGML_GLU_OP_GEGLU: return PG_GATE_GEGLU;
        default: return PG_GATE_NONE;
    }
}

// Two products and what joins them.
static bool take_gate(run * r, const struct ggml_tensor * input, pg_fused_products * p) {
    const run start = *r;
    const struct ggml_tensor * glu = take_product(r, input, p) ? peek(r, GGML_OP_GLU) : NULL;
    const pg_fused_product * product = p->product;
    if (glu && glu->src[0] == product[0].out && glu->src[1] == product[1].out && gate_of(glu) != PG_GATE_NONE &&
        product[0].weight->type == product[1].weight->type && ggml_are_same_shape(product[0].weight, product[1].weight) &&
        ggml_get_op_params_i32(glu, 1) == 0) {
        take(r, GGML_OP_GLU);
        p->gate = gate_of(glu);
        p->product[0].out = glu;
        p->product[1].out = NULL;
        return true;
    }
    *r = start;
    p->n_products = 1;
    return false;
}

// Q or K from its product on: [bias,] [norm by head,] rope.
static const struct ggml_tensor * take_rope(run * r, pg_fused_product * product, const struct ggml_tensor ** norm_weight, float * eps) {
    take_addition(r, product, true);
    const struct ggml_tensor * heads = product->out;
    const struct ggml_tensor * norm = take(r, GGML_OP_RMS_NORM);
    if (norm) {
        const struct ggml_tensor * weighted = take(r, GGML_OP_MUL);
        if (!weighted || weighted->src[0] != norm || behind(norm->src[0]) != heads || !is_plain(weighted->src[1]) ||
            ggml_nelements(weighted->src[1]) != norm->ne[0]) {
            return NULL;
        }
        memcpy(eps, norm->op_params, sizeof(float));
        *norm_weight = weighted->src[1];
        heads = weighted;
    }
    const struct ggml_tensor * rope = take(r, GGML_OP_ROPE);
    product->out = NULL;
    return rope && behind(rope->src[0]) == heads && rope->type == GGML_TYPE_F32 ? rope : NULL;
}

static const struct ggml_tensor * take_store(run * r, const struct ggml_tensor * rows, const struct ggml_tensor * indices) {
    const struct ggml_tensor * store = take(r, GGML_OP_SET_ROWS);
    const bool fits_store = store && behind(store->src[0]) == rows && store->type == GGML_TYPE_F16 && store->src[1]->type == GGML_TYPE_I64 &&
                            (!indices || store->src[1] == indices) && store->ne[2] == 1 && store->ne[3] == 1 && store->nb[0] == 2;
    if (!fits_store || ggml_nelements(store->src[1]) != store->src[0]->ne[1]) {
        return NULL;
    }
    write(r, store);
    return store;
}

static bool has_same_rope(const struct ggml_tensor * q, const struct ggml_tensor * k) {
    const int mode = ggml_get_op_params_i32(q, 2);
    return memcmp(q->op_params, k->op_params, sizeof(q->op_params)) == 0 && q->src[1] == k->src[1] && q->src[2] == k->src[2] &&
           (mode == GGML_ROPE_TYPE_NORMAL || mode == GGML_ROPE_TYPE_NEOX) && q->ne[0] == k->ne[0] && q->ne[2] == k->ne[2] &&
           q->ne[3] == 1 && q->ne[0] <= 256 && q->ne[0] % 2 == 0 && ggml_get_op_params_i32(q, 15) == 0 && is_plain(q);
}

// Q's product is taken: rope of Q and K, K and V into the cache.
static bool take_heads(run * r, const struct ggml_tensor * input, pg_fused_products * p, pg_fused_heads * h) {
    float q_eps = 0, k_eps = 0;
    const struct ggml_tensor * q = take_rope(r, &p->product[0], &h->q_norm, &q_eps);
    const struct ggml_tensor * k = q && take_product(r, input, p) ? take_rope(r, &p->product[1], &h->k_norm, &k_eps) : NULL;
    h->k_rows = k ? take_store(r, k, NULL) : NULL;
    if (!h->k_rows || !take_product(r, input, p)) {
        return false;
    }
    take_addition(r, &p->product[2], true);
    h->v_rows = take_store(r, p->product[2].out, h->k_rows->src[1]);
    p->product[2].out = NULL;
    h->rope = q;
    h->eps = q_eps;
    h->head_dim = (int) q->ne[0];
    h->n_head = (int) q->ne[1];
    h->n_head_kv = (int) k->ne[1];
    write(r, q);
    // Positions and rows are read while earlier kernels still run.
    const bool is_constant = q->src[1]->op == GGML_OP_NONE && (!q->src[2] || q->src[2]->op == GGML_OP_NONE) &&
                             h->k_rows->src[1]->op == GGML_OP_NONE;
    return is_constant && h->v_rows && has_same_rope(q, k) && q_eps == k_eps && !h->q_norm == !h->k_norm;
}

// Blocks read x whole and at their own time, so no result may lie in it; a sum is written after all have read.
static bool is_safe(const pg_fused_products * p) {
    for (int i = 0; i < p->n_products; i++) {
        const pg_fused_product * of = &p->product[i];
        if (overlap(of->out, p->x) || overlap(of->out, p->addend) || overlap(of->out, p->sum)) {
            return false;
        }
        if (overlap(of->out, of->residual) && of->out->data != of->residual->data) {
            return false;
        }
        for (int k = 0; k < p->n_products; k++) {
            if (k != i && (overlap(of->out, p->product[k].out) || overlap(of->out, p->product[k].residual))) {
                return false;
            }
        }
    }
    return true;
}

int pg_fuse_match(const struct ggml_cgraph * graph, int first, int stop, pg_fused * out) {
    run r = { .graph = graph, .first = first, .at = first, .stop = stop };
    pg_fused_products * p = &out->products;
    memset(out, 0, sizeof(*out));
    const char * setting = getenv("PYGGML_FUSED");
    if (is_free(graph->nodes[first]) || (setting && strcmp(setting, "0") == 0)) {
        return 0;
    }
    const struct ggml_tensor * input = take_input(&r, p);
    const bool is_input = input && is_plain(p->x) && p->x->ne[2] == 1 && p->x->ne[3] == 1 && fits(p);
    if (!is_input || !take_product(&r, input, p)) {
        return 0;
    }
    const run start = r;
    const pg_fused_products one = *p;
    out->has_heads = take_heads(&r, input, p, &out->heads);
    if (!out->has_heads) {
        r = start;
        *p = one;
        if (!take_gate(&r, input, p)) {
            take_addition(&r, &p->product[0], true);
            take_addition(&r, &p->product[0], false);
        }
        write(&r, p->product[0].out);
    }
    const bool takes_all = setting && strcmp(setting, "all") == 0;
    const bool is_taken = is_closed(&r) && is_safe(p) && (takes_all || pays(p, out->has_heads));
    out->n_nodes = is_taken ? r.at - first : 0;
    return out->n_nodes;
}
