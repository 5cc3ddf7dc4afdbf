// Runs the source of attention on a processor: `attention HEAD_DIM HEADS KV_HEADS SEQUENCES ROWS CLUSTERS KIND`, KIND of `plain`,
// `normed`, `neox`, `part` (fewer turned), `sinks`, `capped`, `one-mask` (of all sequences), joined by `-`; in `outside` the
// last sequence's own row lies behind all windows. Prints the squared error over the squared size of the right results, and
// of the stored rows.

#include "attention_launch.cuh"
#include "quantised.h"

#include <cstdio>
#include <string>

int main(int, char ** argument) {
    const int d = std::stoi(argument[1]), n_head = std::stoi(argument[2]), n_head_kv = std::stoi(argument[3]);
    const int n_sequences = std::stoi(argument[4]), n_kv = std::stoi(argument[5]);
    const int n_clusters = std::stoi(argument[6]);
    const std::string kind = argument[7];
    const auto has = [&](const char * word) { return kind.find(word) != std::string::npos; };
    const int slot_rows = n_kv + 64, n_rows = (1 + n_sequences) * slot_rows + 1, width = n_head_kv * d;  // slot 0 is not looked at
    const int n_dims = has("part") ? d / 2 : d, group = n_head / n_head_kv;
    std::vector<float> q = random_floats(static_cast<size_t>(n_sequences) * n_head * d, 1);
    std::vector<float> fresh[2] = {random_floats(static_cast<size_t>(n_sequences) * width, 1), random_floats(static_cast<size_t>(n_sequences) * width, 1)};
    const std::vector<float> norms[2] = {random_floats(d, 0.1f, 1), random_floats(d, 0.1f, 1)};
    const std::vector<float> sinks = random_floats(n_head, 1), factors = random_floats(d / 2, 0.1f, 1);
    const int n_masks = has("one-mask") ? 1 : n_sequences;  // the last sequence's, which sees the most
    std::vector<uint16_t> cache[2], mask(static_cast<size_t>(n_masks) * n_kv);
    const auto mask_of = [&](int s) { return mask.data() + static_cast<size_t>(s % n_masks) * n_kv; };
    for (auto & table : cache) {
        for (const float v : random_floats(static_cast<size_t>(n_rows) * width, 1)) {
            table.push_back(__half_as_ushort(__float2half(v)));
        }
    }
    std::vector<int64_t> rows;
    std::vector<int32_t> positions;
    for (int s = 0; s < n_sequences; s++) {
        const bool is_outside = has("outside") && s == n_sequences - 1;
        const int position = (n_kv / 2 + 37 * s + 5) % n_kv;
        positions.push_back(position);
        rows.push_back(is_outside ? n_rows - 1 : (1 + s) * slot_rows + position);
        for (int i = 0; i < n_kv; i++) {
            mask_of(s)[i] = i <= position && (!has("window") || i + 40 > position) && !is_outside ? 0 : 0xfc00;
        }
    }

    // As it should be, in float64.
    const auto place = [&](const float * from, const float * norm, int position) {
        std::vector<double> x(from, from + d), y(d);
        double squares = 0;
        for (const double v : x) {
            squares += v * v;
        }
        for (int i = 0; i < d && has("normed"); i++) {
            x[i] *= norm[i] / std::sqrt(squares / d + 1e-5);
        }
        for (int i = 0; i < d / 2; i++) {
            const bool is_apart = has("neox") && i < n_dims / 2;
            const int a = is_apart ? i : 2 * i, b = is_apart ? i + n_dims / 2 : 2 * i + 1;
            const double angle = 2 * i < n_dims ? position * std::pow(10000.0, -2.0 * i / n_dims) / factors[i] : 0;
            y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
            y[b] = x[a] * std::sin(angle) + x[b] * std::cos(angle);
        }
        return y;
    };
    std::vector<uint16_t> right_cache[2] = {cache[0], cache[1]};
    std::vector<double> right;
    const auto half = [](uint16_t bits) { return static_cast<double>(__half2float(__ushort_as_half(bits))); };
    for (int s = 0; s < n_sequences; s++) {
        for (int head = 0; head < n_head_kv; head++) {
            const size_t from = (static_cast<size_t>(s) * n_head_kv + head) * d, to = rows[s] * width + head * d;
            const std::vector<double> k = place(&fresh[0][from], norms[1].data(), positions[s]);
            for (int i = 0; i < d; i++) {
                right_cache[0][to + i] = __half_as_ushort(__float2half(static_cast<float>(k[i])));
                right_cache[1][to + i] = __half_as_ushort(__float2half(fresh[1][from + i]));
            }
        }
        for (int head = 0; head < n_head; head++) {
            const std::vector<double> turned_q = place(&q[(static_cast<size_t>(s) * n_head + head) * d], norms[0].data(), positions[s]);
            std::vector<double> sum(d);
            double total = has("sinks") ? std::exp(sinks[head]) : 0;
            for (int i = 0; i < n_kv; i++) {
                const size_t at = (static_cast<size_t>(1 + s) * slot_rows + i) * width + head / group * d;
                double score = 0;
                for (int e = 0; e < d; e++) {
                    score += turned_q[e] * half(right_cache[0][at + e]);
                }
                score /= std::sqrt(d);
                score = has("capped") ? 2 * std::tanh(score / 2) : score;
                const double weight = mask_of(s)[i] ? 0 : std::exp(score);
                total += weight;
                for (int e = 0; e < d; e++) {
                    sum[e] += weight * half(right_cache[1][at + e]);
                }
            }
            for (const double v : sum) {
                right.push_back(total > 0 ? v / total : 0);
            }
        }
    }

    std::vector<float> out(right.size(), NAN);
    attention a = {};
    heads & h = a.from;
    h.q = {q.data(), has("normed") ? norms[0].data() : nullptr, n_head * d};
    h.k = {fresh[0].data(), has("normed") ? norms[1].data() : nullptr, width};
    h.v = {fresh[1].data(), nullptr, width};
    h.k_cache = cache[0].data();
    h.v_cache = cache[1].data();
    h.k_stride = h.v_stride = width;
    h.rows = rows.data();
    h.positions = positions.data();
    h.freq_factors = factors.data();
    h.n_tokens = n_sequences;
    h.head_dim = d;
    h.n_dims = n_dims;
    h.is_neox = has("neox");
    h.eps = 1e-5f;
    h.theta_scale = std::pow(10000.0f, -2.0f / n_dims);
    h.freq_scale = h.attn_factor = 1;
    a.k = cache[0].data() + static_cast<size_t>(slot_rows) * width;
    a.v = cache[1].data() + static_cast<size_t>(slot_rows) * width;
    a.k_sequence = a.v_sequence = static_cast<int64_t>(slot_rows) * width;
    a.first_row = a.sequence_rows = slot_rows;
    a.mask = mask.data();
    a.mask_sequence = n_masks > 1 ? n_kv : 0;
    a.sinks = has("sinks") ? sinks.data() : nullptr;
    a.out = out.data();
    a.n_kv = n_kv;
    a.n_head = n_head;
    a.n_group = group;
    a.softcap = has("capped") ? 2 : 0;
    a.scale = 1 / std::sqrt(static_cast<float>(d)) / (has("capped") ? 2 : 1);
    std::vector<unsigned> n_found(ATTENTION_MAX_COUNTERS);
    std::vector<float> found(right.size() / 32 * n_clusters * ATTENTION_FOUND, NAN);
    a.n_clusters = n_clusters;
    a.found = found.data();
    a.n_found = n_found.data();
    comes_late(q);
    comes_late(fresh[0]);
    comes_late(fresh[1]);
    if (launch_attention_of(a, nullptr) != cudaSuccess) {
        return 1;
    }
    error_sum results, stored;
    for (size_t i = 0; i < right.size(); i++) {
        results.add(out[i], right[i]);
    }
    for (int table = 0; table < 2; table++) {
        for (size_t i = 0; i < cache[table].size(); i++) {
            stored.add(half(cache[table][i]), half(right_cache[table][i]));
        }
    }
    const bool is_ready = std::all_of(n_found.begin(), n_found.end(), [](unsigned n) { return n == 0; });  // for the next launch
    printf("%.3e %.3e %d\n", results.share(), stored.share(), is_ready);
}
