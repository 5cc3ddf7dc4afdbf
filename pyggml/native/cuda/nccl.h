// The NCCL transport and its trial.
#pragma once

#include "cuda_api.h"

pg_transport * nccl_new(const char * library, const char * name, int n_ranks, const ggml_backend_t * backends, double deadline_s,
                        char * text, size_t text_size);
bool nccl_trial(const char * library, int n_cards, const int * cards, double deadline_s, char * text, size_t text_size);
