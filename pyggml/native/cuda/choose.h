// The best logits of each row, on the card.
#pragma once

#include "place.h"

int64_t choose_ints(int64_t n_rows, int64_t n_vocab);
bool choose(ggml_backend_t backend, const ggml_tensor * logits, ggml_tensor * found, char * text, size_t text_size);
