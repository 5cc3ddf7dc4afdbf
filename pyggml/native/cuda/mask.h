// The causal mask of attention, made on the card.
#pragma once

#include "place.h"

bool fill_mask(ggml_backend_t backend, ggml_tensor * mask, const ggml_tensor * positions, int window, char * text, size_t text_size);
