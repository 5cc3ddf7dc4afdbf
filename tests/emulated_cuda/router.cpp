// Runs the source of a router's product on a processor: `router COLUMNS WEIGHTS ROWS KIND PROCESSORS`, KIND `normed` or
// `added`. Prints the squared error over the squared size of the right results, normed values and sums.

#include "launch_order.cuh"
#include "quantised.h"
#include "router.cuh"

#include <cstdio>

int main(int, char ** argument) {
    const int n = std::stoi(argument[1]), k = std::stoi(argument[2]), n_rows = std::stoi(argument[3]);
    const bool is_added = std::string(argument[4]) == "added";
    const size_t n_values = static_cast<size_t>(n) * k;
    std::vector<float> x = random_floats(n_values, 2), addend = random_floats(n_values, 1);
    const std::vector<float> matrix = random_floats(static_cast<size_t>(n_rows) * k, 0.1f), weight = random_floats(k, 0.1f, 1);
    std::vector<float> input = x;
    for (size_t i = 0; i < n_values && is_added; i++) {
        input[i] += addend[i];
    }
    std::vector<double> right_normed(n_values), right(static_cast<size_t>(n) * n_rows);
    for (int c = 0; c < n; c++) {
        double squares = 0;
        for (int i = 0; i < k; i++) {
            squares += static_cast<double>(input[c * k + i]) * input[c * k + i];
        }
        for (int i = 0; i < k; i++) {
            right_normed[c * k + i] = input[c * k + i] / std::sqrt(squares / k + 1e-5) * weight[i];
        }
        for (int r = 0; r < n_rows; r++) {
            for (int i = 0; i < k; i++) {
                right[c * n_rows + r] += right_normed[c * k + i] * matrix[static_cast<size_t>(r) * k + i];
            }
        }
    }

    unsigned n_read = 0;
    std::vector<float> normed(n_values, NAN), out(right.size(), NAN);
    router_product p = {};
    p.in = {x.data(), is_added ? addend.data() : nullptr, is_added ? x.data() : nullptr, weight.data(), k, k, k, &n_read, 1e-5f, true};
    p.n_matrices = 1;
    p.n_weights = k;
    p.n_columns = n;
    p.normed = normed.data();
    p.matrix[0].data = reinterpret_cast<const char *>(matrix.data());
    p.matrix[0].n_rows = n_rows;
    p.matrix[0].out = out.data();
    p.matrix[0].out_stride = n_rows;
    launch_router_rows(p, {std::stoi(argument[5]), SHARED_BYTES}, nullptr);
    error_sum results, norms, sums;
    for (size_t i = 0; i < right.size(); i++) {
        results.add(out[i], right[i]);
    }
    for (size_t i = 0; i < n_values; i++) {
        norms.add(normed[i], right_normed[i]);
        sums.add(x[i], input[i]);
    }
    printf("%.3e %.3e %.3e\n", results.share(), norms.share(), sums.share());
}
