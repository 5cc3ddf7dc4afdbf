// The likeliest tokens of a step on their way into the next, from card to card.
#pragma once

#include "place.h"

// Loads the kernels: later that could wait for a card that waits for a peer.
bool prepare_relay(const place & where, const reason & why);

void pairs_of(const ggml_tensor * found, int64_t n_rows, int n_ranks, ggml_tensor * pairs);
bool offer_likeliest(ggml_backend_t backend, const ggml_tensor * found, int64_t first_id, int rank, int n_ranks, const ggml_tensor * pairs,
                     char * text, size_t text_size);
bool feed_likeliest(ggml_backend_t backend, const ggml_tensor * pairs, int n_ranks, ggml_tensor * tokens, char * text, size_t text_size);
