// What ranks tell each other of a step's rows: for each rank, for each row, the largest value and its token's number + 1.
#pragma once

#include "cuda_api.h"

#include <cstdint>

// `rank`'s pairs, zeros where others' belong, so that a sum over ranks brings all together, each as it is.
static __global__ void offer(const int32_t * found, int n_rows, int first_id, int rank, int n_ranks, float * pairs) {
    for (int at = threadIdx.x; at < n_ranks * n_rows; at += blockDim.x) {
        const int32_t * row = found + static_cast<int64_t>(at % n_rows) * PGC_CHOOSE_INTS;
        const bool is_own = at / n_rows == rank && row[2 * PGC_CHOOSE_K] > 0;
        pairs[2 * at] = is_own ? reinterpret_cast<const float *>(row)[PGC_CHOOSE_K] : 0.0f;
        pairs[2 * at + 1] = is_own ? static_cast<float>(row[0] + first_id + 1) : 0.0f;
    }
}

// Where no rank found anything the token is 0: the host, which is told, does not use what comes of it.
static __global__ void feed(const float * pairs, int n_rows, int n_ranks, int32_t * tokens) {
    for (int row = threadIdx.x; row < n_rows; row += blockDim.x) {
        float best = 0, id = 0;
        for (int rank = 0; rank < n_ranks; rank++) {
            const float * pair = pairs + 2 * (rank * n_rows + row);
            if (pair[1] > 0 && (id == 0 || pair[0] > best)) {
                best = pair[0];
                id = pair[1];
            }
        }
        tokens[row] = id > 0 ? static_cast<int32_t>(id) - 1 : 0;
    }
}
