// What one launch of fused products computes; plain data, filled by the host.
// out = gate(W0 x, W1 x), or Wi x + bias + residual for up to three matrices of one type; x may be the sum of two
// tensors, normed and weighted. Strides are in floats and between columns.
#pragma once

#include "weight_boxes.h"

#include <cstdint>

constexpr int MAX_PRODUCTS = 3;
constexpr int MAX_COLUMNS = 16;

// When the next launch of ours may start: once this one has ended, at once, or once this one has read its input (by products
// of several columns and routers at once, too).
enum start_of_next { NEXT_AT_END, NEXT_AT_ONCE, NEXT_WITH_INPUT };

enum product_gate { GATE_NONE = 0, GATE_SWIGLU = 1, GATE_GEGLU = 2 };

struct product_matrix {
    const char * data;
    const float * bias;
    const float * residual;
    float * out;
    int64_t residual_stride;
    int64_t out_stride;
    int n_rows;
    int first_tile;
};

struct product_input {
    const float * x;
    const float * addend;       // or nullptr
    float * sum;                // takes x + addend
    const float * norm_weight;  // nullptr: not weighted
    int64_t x_stride, addend_stride, sum_stride;
    unsigned * n_read;          // counts blocks that have read x, where sum is wanted
    float eps;
    bool is_normed;
};

// How activations lie that were rounded for several columns; products that need no sums take those with sums too.
enum rounding { ROUNDED_NOT, ROUNDED_PLAIN, ROUNDED_WITH_SUMS, ROUNDED_ROTATED };

constexpr bool serves(rounding kind, rounding wanted) {
    return kind == wanted || (wanted == ROUNDED_PLAIN && kind == ROUNDED_WITH_SUMS);
}

struct rounded_columns {
    const uint32_t * q;  // by column-block, 8 words each
    const float * d;
    const float * s;
    rounding kind;
};

struct products {
    product_input in;
    rounded_columns rounded;  // of several columns, `in` ready for use
    product_matrix matrix[MAX_PRODUCTS];
    int64_t row_bytes;
    int n_matrices;
    int n_weights;  // a row
    int n_columns;
    int n_tiles;
    int gate;
    int n_group_warps;  // that share a tile
    int n_slots;        // a warp
    start_of_next next;
};

// Of each matrix, or of gate and up together.
struct matrix_boxes {
    weight_boxes of[MAX_PRODUCTS];
    bool is_up_first;
};

// Of one column. Apart from the others, since so large an argument of a kernel is read in another way.
struct single_products : products {
    matrix_boxes boxes;
};
