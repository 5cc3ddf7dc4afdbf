// Boxes of weights as memory of the host describes them; what lies behind the end of a row is 0.
#pragma once

#include "machine_words.cuh"
#include "weight_boxes.h"

inline std::vector<box_layout> described;

bool describe_boxes(const box_layout & from, weight_boxes & to) {
    const auto is_even = [](int64_t distance) { return distance % 16 == 0; };
    if (!is_even(reinterpret_cast<intptr_t>(from.data)) || !is_even(from.row_bytes) || !is_even(from.beside) || !is_even(from.expert_bytes) ||
        !is_even(from.box_bytes)) {
        return false;
    }
    to.words[0] = described.size();
    described.push_back(from);
    return true;
}

static inline void copy_box(uint32_t to, const void * boxes, int x, int row, int expert, uint32_t barrier) {
    const box_layout & of = described[static_cast<const weight_boxes *>(boxes)->words[0]];
    if (2 * x % 16 != 0 || to % 128 != 0) {
        std::abort();  // the card takes this for no instruction of its own
    }
    for (int i = 0; i < of.n_beside * of.box_rows; i++) {
        const int64_t at_row = row + i % of.box_rows;
        const char * source = of.data + expert * of.expert_bytes + i / of.box_rows * of.beside + at_row * of.row_bytes;
        for (int at = 0; at < of.box_bytes; at += 16, to += 16) {
            const int64_t n_left = at_row < of.n_rows ? of.row_bytes - 2 * x - at : 0;
            copy_soon({to, source + 2 * x + at, static_cast<int>(std::clamp<int64_t>(n_left, 0, 16))});
        }
    }
    copies_arrive(barrier);
}
