// Runs the source of what ranks tell each other of tokens: `relay FILE RANKS ROWS`, the file being the first id of each
// rank, then what each has found. Prints the tokens, and some room behind them that must stay as it was: -1.
// Prints nothing where a rank offers something in another's place or behind the pairs.

#include "launch_order.cuh"
#include "relay_pairs.cuh"

#include <cstdio>
#include <string>

constexpr int N_THREADS = 128, BEYOND = 2 * N_THREADS;

int main(int, char ** argument) {
    const int n_ranks = std::stoi(argument[2]), n_rows = std::stoi(argument[3]);
    const size_t n_found = static_cast<size_t>(n_rows) * PGC_CHOOSE_INTS, n_pairs = size_t(2) * n_ranks * n_rows;
    std::vector<int32_t> file(n_ranks * (1 + n_found));
    FILE * in = fopen(argument[1], "rb");
    if (!in || fread(file.data(), sizeof(int32_t), file.size(), in) != file.size() || fgetc(in) != EOF) {
        return 1;
    }
    std::vector<float> sum(n_pairs, 0.0f);
    for (int rank = 0; rank < n_ranks; rank++) {
        const int32_t * found = file.data() + n_ranks + rank * n_found;
        std::vector<float> pairs(n_pairs + BEYOND, NAN);
        launch_in_order(offer, 1, N_THREADS, 0, nullptr, found, n_rows, static_cast<int>(file[rank]), rank, n_ranks, pairs.data());
        for (int at = 0; at < n_ranks * n_rows; at++) {
            const bool is_right = pairs[2 * at + 1] == 0 ? pairs[2 * at] == 0 : at / n_rows == rank;
            if (!is_right) {
                return 1;
            }
            sum[2 * at] += pairs[2 * at];
            sum[2 * at + 1] += pairs[2 * at + 1];
        }
        if (!std::all_of(pairs.begin() + n_pairs, pairs.end(), [](float v) { return std::isnan(v); })) {
            return 1;
        }
    }
    std::vector<int32_t> tokens(n_rows + BEYOND, -1);
    launch_in_order(feed, 1, N_THREADS, 0, nullptr, static_cast<const float *>(sum.data()), n_rows, n_ranks, tokens.data());
    for (const int32_t token : tokens) {
        printf("%d\n", token);
    }
}
