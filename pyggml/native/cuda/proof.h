// Proof and timing of a transport: right sums on all ranks, seconds a sum.
#pragma once

#include "place.h"

struct proof {
    int64_t n_elements;
    int offset_elements;
    ggml_type type;  // F32, BF16 or F16
    bool is_ordered;
    double deadline_s;
};

bool check_sums(pg_transport * transport, int n_ranks, const place * places, const proof & wanted, const reason & why);
bool time_sums(pg_transport * transport, int n_ranks, const place * places, const proof & wanted, int n_repeats, bool is_captured,
               double * seconds, const reason & why);
