// A node's operands as they lie now (windows move between launches), and memory of the stream's for parts of results.

#include "fused_attention.h"

#include "attention_launch.h"

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace {

// Memory of one stream; never freed, since captured launches keep its addresses. Its size does not depend on a window's
// length, so a window that has grown can be captured at once.
struct parts_memory {
    float * parts = nullptr;
    size_t n_floats = 0;
    unsigned * n_ended = nullptr;
    size_t n_groups = 0;
};

template <class T>
bool grow(T *& data, size_t & n, size_t wanted, const reason & why) {
    if (wanted <= n) {
        return true;
    }
    if (!why.passed(cudaMalloc(&data, wanted * sizeof(T)), "cudaMalloc") ||
        !why.passed(cudaMemset(data, 0, wanted * sizeof(T)), "cudaMemset") ||
        !why.passed(cudaDeviceSynchronize(), "cudaDeviceSynchronize")) {
        return false;
    }
    n = wanted;
    return true;
}

bool find_memory(attention & p, int n_processors, const place & where, const reason & why) {
    constexpr size_t LEAST_GROUPS = 1024;
    static std::mutex lock;
    static std::map<std::pair<int, cudaStream_t>, parts_memory> known;
    std::lock_guard<std::mutex> guard(lock);
    parts_memory & of = known[{where.card, where.stream}];
    const size_t n_groups = static_cast<size_t>(n_block_groups(p));
    if (!grow(of.parts, of.n_floats, attention_floats(p, n_processors), why) ||
        !grow(of.n_ended, of.n_groups, n_groups > LEAST_GROUPS ? n_groups : LEAST_GROUPS, why)) {
        return false;
    }
    p.parts = of.parts;
    p.n_ended = of.n_ended;
    return true;
}

head_rows rows_of(const ggml_tensor * t) {
    return {static_cast<const char *>(t->data), static_cast<int64_t>(t->nb[1]), static_cast<int64_t>(t->nb[2]),
            static_cast<int64_t>(t->nb[3])};
}

bool is_by_16_bytes(const head_rows & of) {
    return (reinterpret_cast<uintptr_t>(of.data) | of.row | of.head | of.seq) % 16 == 0;
}

attention describe(const ggml_tensor * node) {
    const ggml_tensor * q = node->src[0], * k = node->src[1], * mask = node->src[3], * sinks = node->src[4];
    attention p = {};
    p.q = rows_of(q);
    p.k = rows_of(k);
    p.v = rows_of(node->src[2]);
    p.out = static_cast<float *>(node->data);
    p.sinks = sinks ? static_cast<const float *>(sinks->data) : nullptr;
    p.n_kv = static_cast<int>(k->ne[1]);
    p.n_tokens = static_cast<int>(q->ne[1]);
    p.n_head = static_cast<int>(q->ne[2]);
    p.n_head_kv = static_cast<int>(k->ne[2]);
    p.n_seq = static_cast<int>(q->ne[3]);
    p.head_dim = static_cast<int>(q->ne[0]);
    p.n_mask_seq = 1;
    if (mask) {
        p.mask = static_cast<const uint16_t *>(mask->data);
        p.mask_row = static_cast<int64_t>(mask->nb[1] / sizeof(uint16_t));
        p.mask_seq = static_cast<int64_t>(mask->nb[3] / sizeof(uint16_t));
        p.n_mask_seq = static_cast<int>(mask->ne[3]);
        p.can_skip = p.n_kv % ATTENTION_TILE == 0 && reinterpret_cast<uintptr_t>(mask->data) % 16 == 0 && p.mask_row % 8 == 0 &&
                     p.mask_seq % 8 == 0;
    }
    memcpy(&p.scale, node->op_params, sizeof(float));
    memcpy(&p.softcap, node->op_params + 2, sizeof(float));
    return p;
}

}  // namespace

bool launch_attention_of(const ggml_tensor * node, bool lets_next_start, int n_processors, const place & where, const reason & why) {
    attention p = describe(node);
    if (!is_by_16_bytes(p.q) || !is_by_16_bytes(p.k) || !is_by_16_bytes(p.v)) {
        return why.say("attention: its window was moved to an address that is no multiple of 16");
    }
    p.lets_next_start = lets_next_start;
    return find_memory(p, n_processors, where, why) &&
           why.passed(launch_attention(p, n_processors, where.stream), "launching attention");
}
