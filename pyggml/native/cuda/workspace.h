// Memory of a stream for what lies between two launches of one run.
#pragma once

#include "place.h"

// It is never freed, since captured launches keep its addresses.
struct workspace {
    float * between = nullptr;  // results of a launch that the next one takes
    size_t n_floats = 0;
    unsigned * n_read = nullptr;
    unsigned * n_found = nullptr;  // ATTENTION_MAX_COUNTERS
};

// Finds what most runs need, if the stream has none yet; before anything on it is captured.
bool prepare_workspace(const place & where, const reason & why);

// With room for n_floats; not zeroed but for the counters.
bool find_workspace(const place & where, size_t n_floats, workspace & found, const reason & why);

inline const float * floats(const ggml_tensor * t) {
    return t ? static_cast<const float *>(t->data) : nullptr;
}
