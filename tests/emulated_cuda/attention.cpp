// Runs attention's own source on a processor: `attention HEAD_DIM N_HEAD N_HEAD_KV N_TOKENS N_SEQ N_KV KIND PROCESSORS`,
// KIND of window, softcap, sinks, loud (large scores), blind (a token that sees nothing), one (a mask for all sequences)
// or bare (no mask), joined by -. Prints the squared error over the squared size of the right results, the same of a
// second run, and which part of the cache's bytes was read.

#include "attention.cu"

#include <cstdio>
#include <random>
#include <string>
#include <vector>

static std::mt19937 generator(1);

static std::vector<float> random_floats(size_t n, float size) {
    std::normal_distribution<float> normal(0, size);
    std::vector<float> v(n);
    for (float & f : v) {
        f = normal(generator);
    }
    return v;
}

static std::vector<uint16_t> random_halves(size_t n) {
    std::vector<uint16_t> v(n);
    for (uint16_t & h : v) {
        h = __half_as_ushort(__float2half(random_floats(1, 1)[0]));
    }
    return v;
}

static double half_at(const std::vector<uint16_t> & v, size_t i) {
    return __half2float(__ushort_as_half(v[i]));
}

struct shape {
    int d, n_head, n_head_kv, n_tokens, n_seq, n_kv, n_rows;  // rows of a slot: more than are seen

    size_t q(int seq, int token, int head) const { return ((static_cast<size_t>(seq) * n_tokens + token) * n_head + head) * d; }
    size_t kv(int seq, int row, int head) const { return ((static_cast<size_t>(seq) * n_rows + row) * n_head_kv + head) * d; }
};

// The last tokens of the window; each sees all up to itself, or the last 40.
static std::vector<uint16_t> causal_mask(const shape & s, int n_masks, bool has_window, bool has_blind) {
    std::vector<uint16_t> mask(static_cast<size_t>(n_masks) * s.n_tokens * s.n_kv, 0xfc00);
    for (int m = 0; m < n_masks; m++) {
        for (int token = has_blind ? 1 : 0; token < s.n_tokens; token++) {
            const int position = s.n_kv - s.n_tokens + token - 3 * m;
            for (int j = has_window ? std::max(0, position - 39) : 0; j <= position; j++) {
                mask[(static_cast<size_t>(m) * s.n_tokens + token) * s.n_kv + j] = j % 7 ? 0 : __half_as_ushort(__float2half(0.5f));
            }
        }
    }
    return mask;
}

struct operands {
    std::vector<float> q, sinks;
    std::vector<uint16_t> k, v, mask;
    int n_masks;
    float scale, softcap;
};

static std::vector<double> right_results(const shape & s, const operands & o) {
    std::vector<double> out(o.q.size());
    for (int i = 0; i < s.n_seq * s.n_tokens * s.n_head; i++) {
        const int seq = i / s.n_head / s.n_tokens, token = i / s.n_head % s.n_tokens, head = i % s.n_head, kv_head = head / (s.n_head / s.n_head_kv);
        std::vector<double> score(s.n_kv);
        double top = o.sinks.empty() ? -INFINITY : o.sinks[head];
        for (int j = 0; j < s.n_kv; j++) {
            double dot = 0;
            for (int e = 0; e < s.d; e++) {
                dot += o.q[s.q(seq, token, head) + e] * half_at(o.k, s.kv(seq, j, kv_head) + e);
            }
            dot *= o.scale;
            dot = o.softcap != 0 ? o.softcap * std::tanh(dot / o.softcap) : dot;
            score[j] = dot + (o.mask.empty() ? 0 : half_at(o.mask, (static_cast<size_t>(seq % o.n_masks) * s.n_tokens + token) * s.n_kv + j));
            top = std::max(top, score[j]);
        }
        double sum = o.sinks.empty() ? 0 : std::exp(o.sinks[head] - top);
        std::vector<double> value(s.d);
        for (int j = 0; j < s.n_kv && top != -INFINITY; j++) {
            const double weight = std::exp(score[j] - top);
            sum += weight;
            for (int e = 0; e < s.d && weight > 0; e++) {
                value[e] += weight * half_at(o.v, s.kv(seq, j, kv_head) + e);
            }
        }
        for (int e = 0; e < s.d; e++) {
            out[static_cast<size_t>(i) * s.d + e] = sum == 0 ? 0 : value[e] / sum;
        }
    }
    return out;
}

static double error_of(const std::vector<float> & ours, const std::vector<double> & right) {
    double wrong = 0, size = 0;
    for (size_t i = 0; i < right.size(); i++) {
        wrong += (ours[i] - right[i]) * (ours[i] - right[i]);
        size += right[i] * right[i];
    }
    return wrong / size;
}

int main(int, char ** argument) {
    const auto number = [&](int i) { return std::stoi(argument[i]); };
    const std::string kind = argument[7];
    const auto has = [&](const char * word) { return kind.find(word) != std::string::npos; };
    const shape s = {number(1), number(2), number(3), number(4), number(5), number(6), number(6) + 32};
    operands o;
    o.q = random_floats(static_cast<size_t>(s.n_seq) * s.n_tokens * s.n_head * s.d, has("loud") ? 40 : 1);
    o.k = random_halves(static_cast<size_t>(s.n_seq) * s.n_rows * s.n_head_kv * s.d);
    o.v = random_halves(o.k.size());
    o.sinks = has("sinks") ? random_floats(s.n_head, 2) : std::vector<float>();
    o.n_masks = has("one") ? 1 : s.n_seq;
    o.mask = has("bare") ? std::vector<uint16_t>() : causal_mask(s, o.n_masks, has("window"), has("blind"));
    o.scale = 1 / std::sqrt(static_cast<float>(s.d));
    o.softcap = has("softcap") ? 3 : 0;
    const std::vector<double> right = right_results(s, o);

    operands seen = o;  // what the kernel reads, once it has waited
    std::vector<float> out(right.size());
    attention p = {};
    const int64_t head = 2 * s.d, row = head * s.n_head_kv;
    p.q = {reinterpret_cast<const char *>(seen.q.data()), 4 * s.d * s.n_head, 4 * s.d, 4 * s.d * s.n_head * s.n_tokens};
    p.k = {reinterpret_cast<const char *>(seen.k.data()), row, head, row * s.n_rows};
    p.v = {reinterpret_cast<const char *>(seen.v.data()), row, head, row * s.n_rows};
    p.mask = o.mask.empty() ? nullptr : seen.mask.data();
    p.mask_row = s.n_kv;
    p.mask_seq = static_cast<int64_t>(s.n_kv) * s.n_tokens;
    p.sinks = o.sinks.empty() ? nullptr : o.sinks.data();
    p.out = out.data();
    p.n_kv = s.n_kv;
    p.n_tokens = s.n_tokens;
    p.n_head = s.n_head;
    p.n_head_kv = s.n_head_kv;
    p.n_seq = s.n_seq;
    p.n_mask_seq = o.n_masks;
    p.head_dim = s.d;
    p.can_skip = p.mask && s.n_kv % ATTENTION_TILE == 0;
    p.scale = o.scale;
    p.softcap = o.softcap;
    std::vector<float> parts(attention_floats(p, number(8)) + 4, NAN);
    std::vector<unsigned> n_ended(n_block_groups(p));
    p.parts = parts.data() + (16 - reinterpret_cast<uintptr_t>(parts.data()) % 16) % 16 / sizeof(float);
    p.n_ended = n_ended.data();
    hide = [&] {
        std::fill(seen.q.begin(), seen.q.end(), NAN);
        for (std::vector<uint16_t> * halves : {&seen.k, &seen.v, &seen.mask}) {
            std::fill(halves->begin(), halves->end(), 0x7e7e);
        }
    };
    show = [&] {
        std::copy(o.q.begin(), o.q.end(), seen.q.begin());
        std::copy(o.k.begin(), o.k.end(), seen.k.begin());
        std::copy(o.v.begin(), o.v.end(), seen.v.begin());
        std::copy(o.mask.begin(), o.mask.end(), seen.mask.begin());
    };
    double errors[2];
    for (double & error : errors) {  // the counters are 0 again
        std::fill(out.begin(), out.end(), NAN);
        if (launch_attention(p, number(8), nullptr) != cudaSuccess) {
            puts("not launched");
            return 1;
        }
        error = error_of(out, right);
    }
    const double n_read = 16.0 * n_copies / 2, n_there = 2.0 * row * s.n_kv * s.n_seq * n_query_tiles(p);
    printf("%.3e %.3e %.4f\n", errors[0], errors[1], n_read / n_there);
}
