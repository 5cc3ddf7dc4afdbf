// Messages between ranks on different cards.
#pragma once

#include "cuda_api.h"

pg_mover * mover_new(int n_ranks, const ggml_backend_t * backends, const bool * may_copy, char * text, size_t text_size);
