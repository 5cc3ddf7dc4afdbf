// What a launch of products must know of a card.
#pragma once

#include <cstddef>

struct product_card {
    int n_processors;
    size_t max_shared;  // of a block
    bool has_boxes;     // whether its kernels take weights as boxes
};
