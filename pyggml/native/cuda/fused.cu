// Runs of nodes as launches: tensors become addresses, and what lies between launches gets memory of the stream's.

#include "fused.h"

#include "fused_experts.h"
#include "heads_launch.h"
#include "product_types.h"
#include "rounded_input.h"
#include "router.h"
#include "workspace.h"

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

namespace {

static_assert(PG_FUSED_WINDOW_ROWS == ATTENTION_CLUSTER_ROWS && PG_FUSED_MAX_HEADS == ATTENTION_MAX_HEADS);

struct card_facts {
    product_card card = {};
    bool is_able = false;
    bool has_clusters = false;
};

std::mutex lock;

const card_facts & facts_of(int card) {
    static std::map<int, card_facts> known;
    std::lock_guard<std::mutex> guard(lock);
    const auto found = known.find(card);
    if (found != known.end()) {
        return found->second;
    }
    card_facts & facts = known[card];
    int major = 0, n_processors = 0, max_shared = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card);
    cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, card);
    cudaDeviceGetAttribute(&max_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, card);
    const bool wants_boxes = product_kernels_take_boxes();
    facts.card = {n_processors, static_cast<size_t>(max_shared), wants_boxes};
    facts.is_able = major >= 8 && has_product_kernels() && (!wants_boxes || has_weight_boxes());
    facts.has_clusters = major >= 9 && has_attention_kernels();
    return facts;
}

int64_t stride_of(const ggml_tensor * t) {
    return t ? static_cast<int64_t>(t->nb[1] / sizeof(float)) : 0;
}

// Floats before the rounded activations.
size_t results_size(const pg_fused & of) {
    size_t n = 0;
    for (int i = 0; of.has_heads && i < of.products.n_products; i++) {
        n += of.products.product[i].weight->ne[1] * of.products.x->ne[1];
    }
    return (n + 3) / 4 * 4;
}

int clusters_for(const pg_fused_heads & of, const product_card & card) {
    const ggml_tensor * q = of.attention->src[0];
    const ggml_tensor * k = of.attention->src[1];
    return attention_clusters(static_cast<int>(q->ne[3]), static_cast<int>(q->ne[2]), static_cast<int>(q->ne[2] / k->ne[2]), of.head_dim,
                              static_cast<int>(k->ne[1]), card.n_processors);
}

// Floats behind those, for clusters of attention that share a window.
size_t found_size(const pg_fused & of, const product_card & card) {
    if (!of.has_heads || !of.heads.attention) {
        return 0;
    }
    const int n_clusters = clusters_for(of.heads, card);
    return n_clusters > 1 ? ggml_nelements(of.heads.attention) / 32 * n_clusters * ATTENTION_FOUND : 0;
}

size_t floats_between(const pg_fused & of, const product_card & card) {
    if (of.is_experts) {
        return between_size(of.experts);
    }
    const int n_weights = static_cast<int>(of.products.x->ne[0]), n_columns = static_cast<int>(of.products.x->ne[1]);
    const size_t of_products = results_size(of) + (n_columns > 1 ? rounded_size(n_weights, n_columns) / sizeof(float) : 0);
    return of_products + found_size(of, card);
}

rounding rounding_for(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q8_0: return ROUNDED_ROTATED;
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K:
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_1: return ROUNDED_WITH_SUMS;
        default: return ROUNDED_PLAIN;
    }
}

products describe(const pg_fused_products & of, const workspace & space) {
    products p = {};
    p.in.x = floats(of.x);
    p.in.addend = floats(of.addend);
    p.in.sum = of.sum ? static_cast<float *>(of.sum->data) : nullptr;
    p.in.norm_weight = floats(of.norm_weight);
    p.in.x_stride = stride_of(of.x);
    p.in.addend_stride = stride_of(of.addend);
    p.in.sum_stride = stride_of(of.sum);
    p.in.n_read = space.n_read;
    p.in.eps = of.eps;
    p.in.is_normed = of.is_normed;
    p.n_matrices = of.n_products;
    p.n_weights = static_cast<int>(of.x->ne[0]);
    p.n_columns = static_cast<int>(of.x->ne[1]);
    p.gate = of.gate;
    float * next = space.between;
    for (int i = 0; i < of.n_products; i++) {
        const pg_fused_product & from = of.product[i];
        product_matrix & to = p.matrix[i];
        to.data = static_cast<const char *>(from.weight->data);
        to.bias = floats(from.bias);
        to.residual = floats(from.residual);
        to.residual_stride = stride_of(from.residual);
        to.n_rows = static_cast<int>(from.weight->ne[1]);
        to.out = from.out ? static_cast<float *>(from.out->data) : next;
        to.out_stride = from.out ? stride_of(from.out) : to.n_rows;
        next += from.out ? 0 : static_cast<int64_t>(to.n_rows) * p.n_columns;
    }
    return p;
}

heads describe(const pg_fused_heads & of, const products & p) {
    heads h = {};
    float rope[6], corrections[2];  // freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow
    memcpy(rope, of.rope->op_params + 5, sizeof(rope));
    h.q = {p.matrix[0].out, floats(of.q_norm), p.matrix[0].n_rows};
    h.k = {p.matrix[1].out, floats(of.k_norm), p.matrix[1].n_rows};
    h.v = {p.matrix[2].out, nullptr, p.matrix[2].n_rows};
    h.q_out = static_cast<float *>(of.rope->data);
    h.k_cache = static_cast<uint16_t *>(of.k_rows->data);
    h.v_cache = static_cast<uint16_t *>(of.v_rows->data);
    h.k_stride = static_cast<int64_t>(of.k_rows->nb[1] / sizeof(uint16_t));
    h.v_stride = static_cast<int64_t>(of.v_rows->nb[1] / sizeof(uint16_t));
    h.rows = static_cast<const int64_t *>(of.k_rows->src[1]->data);
    h.positions = static_cast<const int32_t *>(of.rope->src[1]->data);
    h.freq_factors = floats(of.rope->src[2]);
    h.n_tokens = p.n_columns;
    h.head_dim = of.head_dim;
    h.n_dims = of.rope->op_params[1];
    h.is_neox = of.rope->op_params[2] == GGML_ROPE_TYPE_NEOX;
    h.eps = of.eps;
    h.theta_scale = powf(rope[0], -2.0f / h.n_dims);
    h.freq_scale = rope[1];
    h.ext_factor = rope[2];
    h.attn_factor = rope[3];
    ggml_rope_yarn_corr_dims(h.n_dims, of.rope->op_params[4], rope[0], rope[4], rope[5], corrections);
    h.low_dim = corrections[0];
    h.high_dim = corrections[1];
    return h;
}

attention describe(const pg_fused_heads & of, const heads & h, const product_card & card, const workspace & space, float * found) {
    const ggml_tensor * node = of.attention;
    const ggml_tensor * k = node->src[1];
    const ggml_tensor * v = node->src[2];
    const ggml_tensor * mask = node->src[3];
    attention a = {};
    float scales[3];  // of scores, ALiBi's, the cap
    memcpy(scales, node->op_params, sizeof(scales));
    a.from = h;
    a.k = static_cast<const uint16_t *>(k->data);
    a.v = static_cast<const uint16_t *>(v->data);
    a.mask = static_cast<const uint16_t *>(mask->data);
    a.sinks = floats(node->src[4]);
    a.out = static_cast<float *>(node->data);
    a.k_sequence = static_cast<int64_t>(k->nb[3] / sizeof(uint16_t));
    a.v_sequence = static_cast<int64_t>(v->nb[3] / sizeof(uint16_t));
    a.mask_sequence = mask->ne[3] > 1 ? static_cast<int64_t>(mask->nb[3] / sizeof(uint16_t)) : 0;
    a.first_row = (a.k - h.k_cache) / h.k_stride;
    a.sequence_rows = a.k_sequence / h.k_stride;
    a.n_kv = static_cast<int>(k->ne[1]);
    a.n_head = static_cast<int>(node->src[0]->ne[2]);
    a.n_group = a.n_head / static_cast<int>(k->ne[2]);
    a.n_clusters = clusters_for(of, card);
    a.found = found;
    a.n_found = space.n_found;
    a.softcap = scales[2];
    a.scale = scales[2] != 0 ? scales[0] / scales[2] : scales[0];
    return a;
}

// Two launches of ours in a row keep the memory busy by then: the sum that follows waits, and so does what the sum lets start,
// whose weights would be in the way of this launch's input. Behind ggml's attention nothing else is read.
start_of_next start_of_next_behind(const pg_fused & fused) {
    const bool is_second = fused.is_behind_ours || fused.is_experts;
    const start_of_next next = fused.is_before_sum && is_second ? NEXT_WITH_INPUT : NEXT_AT_ONCE;
    return fused.has_heads || fused.is_before_ours ? next : NEXT_AT_END;
}

// One launch for each type of weights, all from the same input; the last one writes its sum, which may lie in the input.
// Several columns are rounded before, into `rounded`, and once more for a type that wants them otherwise.
cudaError_t launch_types(const pg_fused_products & of, products all, float * rounded, const product_card & card, cudaStream_t stream) {
    bool is_launched[PG_FUSED_MAX_PRODUCTS] = {};
    int n_left = of.n_products;
    for (int first = 0; first < of.n_products; first++) {
        if (is_launched[first]) {
            continue;
        }
        const ggml_tensor * weight = of.product[first].weight;
        const rounding wanted = rounding_for(weight->type);
        if (all.n_columns > 1 && !serves(all.rounded.kind, wanted)) {
            if (const cudaError_t status = launch_rounding(all, wanted, rounded, stream); status != cudaSuccess) {
                return status;
            }
        }
        products p = all;
        p.n_matrices = 0;
        p.row_bytes = static_cast<int64_t>(weight->nb[1]);
        for (int i = first; i < of.n_products; i++) {
            if (of.product[i].weight->type == weight->type) {
                p.matrix[p.n_matrices++] = all.matrix[i];
                is_launched[i] = true;
                n_left--;
            }
        }
        p.in.sum = n_left == 0 ? all.in.sum : nullptr;
        p.next = n_left > 0 ? NEXT_AT_ONCE : all.next;
        if (const cudaError_t status = launches_of(weight->type).alone(p, card, stream); status != cudaSuccess) {
            return status;
        }
    }
    return cudaSuccess;
}

}  // namespace

bool can_fuse(const place & where) {
    return cudaSetDevice(where.card) == cudaSuccess && facts_of(where.card).is_able;
}

bool can_attend(const place & where) {
    return cudaSetDevice(where.card) == cudaSuccess && facts_of(where.card).has_clusters;
}

bool launch_fused(const pg_fused & fused, const place & where, const reason & why) {
    workspace space;
    if (!why.passed(cudaSetDevice(where.card), "cudaSetDevice")) {
        return false;
    }
    const product_card & card = facts_of(where.card).card;
    if (!find_workspace(where, floats_between(fused, card), space, why)) {
        return false;
    }
    if (fused.is_experts) {
        const cudaError_t status = launch_fused_experts(fused.experts, space.between, start_of_next_behind(fused), card, where.stream);
        return why.passed(status, "launching experts");
    }
    products p = describe(fused.products, space);
    p.next = start_of_next_behind(fused);
    if (fused.products.normed) {
        const router_product router = {p, static_cast<float *>(fused.products.normed->data)};
        return why.passed(launch_router(router, card, where.stream), "launching a router");
    }
    float * rounded = space.between + results_size(fused);
    if (!why.passed(launch_types(fused.products, p, rounded, card, where.stream), "launching products")) {
        return false;
    }
    if (!fused.has_heads) {
        return true;
    }
    float * found = space.between + floats_between(fused, card) - found_size(fused, card);
    heads h = describe(fused.heads, p);
    h.lets_next_start = fused.is_before_ours;
    return fused.heads.attention ? why.passed(launch_attention(describe(fused.heads, h, card, space, found), where.stream), "launching attention") :
                                   why.passed(launch_heads(h, where.stream), "launching heads");
}
