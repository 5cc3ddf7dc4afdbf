// Softmax that goes on tile by tile, in the registers of a warp.
#pragma once

#include "attention.h"

#include <cuda_fp16.h>

#include <cmath>

// Of a lane's two queries (rows of a tensor core's result): the largest score and the sum of weights.
struct running_softmax {
    float most[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0, 0};

    // Scores become weights; `factor` is what earlier sums are to be multiplied by. hidden: the mask's halves.
    __device__ __forceinline__ void weigh(const attention & p, const uint16_t hidden[8], float s[2][4], float factor[2]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = most[r];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float & score = s[i / 2][2 * r + i % 2];
                score = p.softcap != 0.0f ? p.softcap * tanhf(score) : score;
                score += __half2float(__ushort_as_half(hidden[4 * r + i]));
                top = fmaxf(top, score);
            }
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
            const float from = top == -INFINITY ? 0.0f : top;
            factor[r] = __expf(most[r] - from);
            sum[r] *= factor[r];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float & score = s[i / 2][2 * r + i % 2];
                score = __expf(score - from);
                sum[r] += score;
            }
            most[r] = top;
        }
    }
};
