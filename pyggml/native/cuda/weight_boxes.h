// Matrices of weights as the card's copying engine knows them (compute capability 9.0): it brings boxes of units of some
// rows, so that one lane asks for what otherwise takes all lanes many copies.
#pragma once

#include <cstdint>

// What CUDA calls a tensor map.
struct alignas(128) weight_boxes {
    uint64_t words[16];
};

// Rows of n_beside matrices `beside` bytes apart, n_experts times. A box has box_bytes of each of box_rows rows of each matrix of one
// expert; what lies behind the end of a row is 0. All distances are multiples of 16 bytes.
struct box_layout {
    const char * data;
    int64_t row_bytes, beside, expert_bytes;
    int n_rows, n_beside, n_experts;
    int box_bytes, box_rows;
};

// Whether the driver can describe any.
bool has_weight_boxes();

bool describe_boxes(const box_layout & from, weight_boxes & to);
