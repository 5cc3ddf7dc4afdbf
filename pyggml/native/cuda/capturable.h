// Whether a graph's launches can be recorded.
#pragma once

#include "place.h"

bool can_capture(ggml_backend_t backend, const ggml_cgraph * graph, char * text, size_t text_size);
