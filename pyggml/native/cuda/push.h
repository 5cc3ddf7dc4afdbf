// The push transport.
#pragma once

#include "cuda_api.h"

// Tells the next sum that the calling thread launches whether a launch of ours follows it (pgc_api::sum_before_ours).
void push_before_ours(bool is_so);

pg_transport * push_new(int n_ranks, const ggml_backend_t * backends, int64_t chunk_elements, double deadline_s, char * text,
                        size_t text_size);
