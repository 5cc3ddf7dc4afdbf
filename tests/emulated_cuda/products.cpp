// Runs the products' own source on a processor, several columns with their rounding before: `products TYPE COLUMNS WEIGHTS ROWS KIND PROCESSORS`, KIND of normed,
// added, gate, bias, residual, swapped (up lies before gate), joined by -. Prints the squared error over the squared size of the right results, and
// the same for the sum of x and addend.

#include "weight_boxes.cuh"

#include "nibble_blocks.cuh"
#include "product_launch.cuh"
#include "q6_k_blocks.cuh"
#include "quantised.h"
#include "rounded_input.cu"

#include <cstdio>

static cudaError_t launch(const std::string & type, products & p, const product_card & card) {
    if (fits_boxes(p, card) && (type == "q4_0" || type == "q4_1")) {
        return type == "q4_0" ? launch_rows<q4_0, false>(p, card, nullptr) : launch_rows<q4_1, false>(p, card, nullptr);
    }
    if (is_nibbles(type)) {
        return type == "q4_0" ? launch_columns<q4_0, true>(p, card, nullptr)
               : type == "q4_1" ? launch_columns<q4_1, true>(p, card, nullptr) : launch_columns<mxfp4, true>(p, card, nullptr);
    }
    if (type == "q8_0") {
        return p.n_weights % UNIT_WEIGHTS ? launch_columns<q8_0, true>(p, card, nullptr) : launch_columns<q8_0, false>(p, card, nullptr);
    }
    return type == "q4_k" ? launch_columns<q4_k, false>(p, card, nullptr)
           : type == "q5_k" ? launch_columns<q5_k, false>(p, card, nullptr) : launch_columns<q6_k, true>(p, card, nullptr);
}

static rounding rounding_of(const std::string & type) {
    return type == "q8_0" ? ROUNDED_ROTATED : type == "q6_k" || type == "mxfp4" ? ROUNDED_PLAIN : ROUNDED_WITH_SUMS;
}

int main(int, char ** argument) {
    const std::string type = argument[1], kind = argument[5];
    const int n = std::stoi(argument[2]), k = std::stoi(argument[3]), n_rows = std::stoi(argument[4]);
    const auto has = [&](const char * word) { return kind.find(word) != std::string::npos; };
    const bool is_gated = has("gate");
    const size_t row_bytes = k / shape_of(type).weights * shape_of(type).bytes, n_values = static_cast<size_t>(n) * k;
    const std::vector<uint8_t> both = random_rows(type, 2 * n_rows, k);  // gate's and up's
    const uint8_t * held[2] = {both.data(), both.data() + n_rows * row_bytes};
    if (has("swapped")) {
        std::swap(held[0], held[1]);
    }
    std::vector<float> x = random_floats(n_values, 2), addend = random_floats(n_values, 1);
    const std::vector<float> weight = random_floats(k, 0.1f, 1), bias = random_floats(n_rows, 1);
    std::vector<float> residual = random_floats(static_cast<size_t>(n) * n_rows, 5);

    std::vector<float> input = x;
    error_sum sums, results;
    for (size_t i = 0; i < n_values && has("added"); i++) {
        input[i] += addend[i];
    }
    const std::vector<float> right_sum = input;
    for (int c = 0; c < n && has("normed"); c++) {
        double squares = 0;
        for (int i = 0; i < k; i++) {
            squares += static_cast<double>(input[c * k + i]) * input[c * k + i];
        }
        for (int i = 0; i < k; i++) {
            input[c * k + i] *= static_cast<float>(1 / std::sqrt(squares / k + 1e-5)) * weight[i];
        }
    }
    const std::vector<double> q = rounded(input);
    std::vector<double> right(static_cast<size_t>(n) * n_rows);
    for (int c = 0; c < n; c++) {
        for (int r = 0; r < n_rows; r++) {
            double dot[2] = {has("bias") ? bias[r] : 0, 0};
            for (int m = 0; m <= is_gated; m++) {
                for (int i = 0; i < k; i++) {
                    const uint8_t * row = held[m] + r * row_bytes;
                    dot[m] += q[c * k + i] * value(type, row, i) + (i % 32 ? 0 : offset(type, row, i, q.data() + c * k));
                }
            }
            right[c * n_rows + r] = is_gated ? dot[0] / (1 + std::exp(-dot[0])) * dot[1] : dot[0] + (has("residual") ? residual[c * n_rows + r] : 0);
        }
    }

    unsigned n_read = 0;
    products p = {};
    p.in = {x.data(), has("added") ? addend.data() : nullptr, has("added") ? x.data() : nullptr, has("normed") ? weight.data() : nullptr,
            k, k, k, &n_read, 1e-5f, has("normed")};
    p.row_bytes = static_cast<int64_t>(row_bytes);
    p.n_matrices = is_gated ? 2 : 1;
    p.n_weights = k;
    p.n_columns = n;
    p.gate = is_gated ? GATE_SWIGLU : GATE_NONE;
    for (int m = 0; m <= is_gated; m++) {
        p.matrix[m].data = reinterpret_cast<const char *>(held[m]);
        p.matrix[m].n_rows = n_rows;
        p.matrix[m].out_stride = p.matrix[m].residual_stride = n_rows;
    }
    p.matrix[0].bias = has("bias") ? bias.data() : nullptr;
    std::vector<float> out(right.size(), NAN);
    p.matrix[0].out = has("residual") ? residual.data() : out.data();  // in place, as graphs have it
    p.matrix[0].residual = has("residual") ? residual.data() : nullptr;
    std::vector<float4> rounded(rounded_size(k, n) / 16, {NAN, NAN, NAN, NAN});
    const bool is_rounded = n == 1 || launch_rounding(p, rounding_of(type), rounded.data(), nullptr) == cudaSuccess;
    if (!is_rounded || launch(type, p, {std::stoi(argument[6]), SHARED_BYTES, __CUDA_ARCH__ >= 900}) != cudaSuccess) {
        puts("not launched");
        return 1;
    }
    for (size_t i = 0; i < right.size(); i++) {
        results.add(p.matrix[0].out[i], right[i]);
    }
    for (size_t i = 0; i < n_values; i++) {
        sums.add(x[i], has("added") ? right_sum[i] : x[i]);
    }
    printf("%.3e %.3e\n", results.share(), sums.share());
}
