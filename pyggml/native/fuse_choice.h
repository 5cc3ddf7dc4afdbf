// The choice of experts by their ratings: nodes before those of experts, which may make the choice themselves.
#pragma once

#include "fuse.h"
#include "fuse_run.h"

#ifdef __cplusplus
extern "C" {
#endif

// What the choice's nodes give; NULL where they are others.
typedef struct {
    const struct ggml_tensor * order;    // all experts, the best one first
    const struct ggml_tensor * weights;  // of the first ones
} pg_choice;

// Softmax, the order of what it gives, the first ones' shares, and what norms and scales those. `e` takes how they are made.
pg_choice pg_take_choice(pg_fuse_run * r, pg_fused_experts * e);

// Whether ids and weights of the experts are what the choice gives, if there is one.
bool pg_is_of_choice(const pg_choice * choice, const pg_fused_experts * e);

#ifdef __cplusplus
}
#endif
