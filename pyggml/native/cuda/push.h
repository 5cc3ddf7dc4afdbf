// The push transport.
#pragma once

#include "cuda_api.h"

pg_transport * push_new(int n_ranks, const ggml_backend_t * backends, int64_t chunk_elements, double deadline_s, char * text,
                        size_t text_size);
