// Runs the source of products with chosen experts on a processor:
// `experts TYPE TOKENS USED WEIGHTS ROWS KIND PROCESSORS`, KIND `gate`, or `sum`, with `-residual` if one is added.
// Prints the squared error over the squared size of the right results.

#include "weight_boxes.cuh"

#include "expert_launch.cuh"
#include "nibble_blocks.cuh"
#include "q6_k_blocks.cuh"
#include "quantised.h"

#include <cstdio>
#include <numeric>

constexpr int N_EXPERTS = 9;

static cudaError_t launch(const std::string & type, const expert_products & p, const product_card & card) {
    if (fits_boxes(p, card) && (type == "q4_0" || type == "q4_1")) {
        return type == "q4_0" ? launch_experts<q4_0, false>(p, card, nullptr) : launch_experts<q4_1, false>(p, card, nullptr);
    }
    if (type == "q4_0") {
        return launch_experts<q4_0, true>(p, card, nullptr);
    }
    if (type == "q4_1") {
        return launch_experts<q4_1, true>(p, card, nullptr);
    }
    if (type == "mxfp4") {
        return launch_experts<mxfp4, true>(p, card, nullptr);
    }
    if (type == "q8_0") {
        return p.n_weights % UNIT_WEIGHTS ? launch_experts<q8_0, true>(p, card, nullptr) : launch_experts<q8_0, false>(p, card, nullptr);
    }
    return type == "q4_k" ? launch_experts<q4_k, false>(p, card, nullptr)
           : type == "q5_k" ? launch_experts<q5_k, false>(p, card, nullptr) : launch_experts<q6_k, true>(p, card, nullptr);
}

int main(int, char ** argument) {
    const std::string type = argument[1], kind = argument[6];
    const int n_tokens = std::stoi(argument[2]), n_used = std::stoi(argument[3]), k = std::stoi(argument[4]), n_rows = std::stoi(argument[5]);
    const bool is_gated = kind == "gate", has_residual = kind == "sum-residual";
    const int n_chosen = n_tokens * n_used, n_inputs = is_gated ? n_tokens : n_chosen, n_results = is_gated ? n_chosen : n_tokens;
    const size_t row_bytes = k / shape_of(type).weights * shape_of(type).bytes;
    const std::vector<uint8_t> held[2] = {random_rows(type, N_EXPERTS * n_rows, k), random_rows(type, N_EXPERTS * n_rows, k)};
    const std::vector<float> x = random_floats(static_cast<size_t>(n_inputs) * k, 2);
    std::vector<float> residual = random_floats(static_cast<size_t>(n_results) * n_rows, 5);
    const int ids_stride = N_EXPERTS, weights_stride = n_used + 1;
    std::vector<int32_t> ids(n_tokens * ids_stride);
    for (int token = 0; token < n_tokens; token++) {
        std::iota(ids.begin() + token * ids_stride, ids.begin() + (token + 1) * ids_stride, 0);
        std::shuffle(ids.begin() + token * ids_stride, ids.begin() + (token + 1) * ids_stride, generator);
    }
    const std::vector<float> weights = random_floats(n_tokens * weights_stride, 0.3f, 0.5f);

    const std::vector<double> q = rounded(x);
    std::vector<double> right(static_cast<size_t>(n_results) * n_rows);
    for (int i = 0; i < n_chosen; i++) {
        const int token = i / n_used, input = is_gated ? token : i;
        const int expert = ids[token * ids_stride + i % n_used];
        for (int r = 0; r < n_rows; r++) {
            double dot[2] = {};
            for (int m = 0; m <= is_gated; m++) {
                const uint8_t * row = held[m].data() + (static_cast<size_t>(expert) * n_rows + r) * row_bytes;
                for (int j = 0; j < k; j++) {
                    dot[m] += q[input * k + j] * value(type, row, j) + (j % 32 ? 0 : offset(type, row, j, q.data() + input * k));
                }
            }
            double & result = right[(is_gated ? i : token) * n_rows + r];
            result = is_gated ? dot[0] / (1 + std::exp(-dot[0])) * dot[1]
                              : result + (i % n_used == 0 && has_residual ? residual[token * n_rows + r] : 0) +
                                    dot[0] * weights[token * weights_stride + i % n_used];
        }
    }

    expert_products p = {};
    p.in.x = x.data();
    p.in.x_stride = is_gated ? k : n_used * k;
    p.row_bytes = static_cast<int64_t>(row_bytes);
    p.expert_bytes = p.row_bytes * n_rows;
    p.n_matrices = is_gated ? 2 : 1;
    p.n_weights = k;
    p.n_columns = n_tokens;
    p.n_used = n_used;
    p.n_experts = N_EXPERTS;
    p.gate = is_gated ? GATE_SWIGLU : GATE_NONE;
    p.ids = ids.data();
    p.ids_stride = ids_stride;
    p.weights = weights.data();
    std::vector<int32_t> kept_ids(n_chosen);
    std::vector<float> kept_weights(n_chosen);
    p.kept_ids = kept_ids.data();
    p.kept_weights = kept_weights.data();
    p.weights_stride = weights_stride;
    for (int m = 0; m <= is_gated; m++) {
        p.matrix[m].data = reinterpret_cast<const char *>(held[m].data());
        p.matrix[m].n_rows = n_rows;
        p.matrix[m].out_stride = p.matrix[m].residual_stride = n_rows;
    }
    std::vector<float> out(right.size(), NAN);
    p.matrix[0].out = has_residual ? residual.data() : out.data();  // in place, as graphs have it
    p.matrix[0].residual = has_residual ? residual.data() : nullptr;
    if (launch(type, p, {std::stoi(argument[7]), SHARED_BYTES, __CUDA_ARCH__ >= 900}) != cudaSuccess) {
        puts("not launched");
        return 1;
    }
    error_sum results;
    for (int i = 0; i < n_chosen && is_gated; i++) {
        const int token = i / n_used, place = i % n_used;
        results.add(kept_ids[i], ids[token * ids_stride + place]);
        results.add(kept_weights[i], weights[token * weights_stride + place]);
    }
    for (size_t i = 0; i < right.size(); i++) {
        results.add(p.matrix[0].out[i], right[i]);
    }
    printf("%.3e\n", results.share());
}
