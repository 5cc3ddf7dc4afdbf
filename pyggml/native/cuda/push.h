// The push transport.
#pragma once

#include "cuda_api.h"

// What the next sum that the calling thread launches adds, where it goes, and whether ours comes next (pgc_api::sum_with).
void push_with(const ggml_tensor * addend, ggml_tensor * out, bool is_so);

pg_transport * push_new(int n_ranks, const ggml_backend_t * backends, bool through_host, double deadline_s,
                        char * text, size_t text_size);
