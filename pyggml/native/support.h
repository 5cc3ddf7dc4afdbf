// Whether a device can compute a node of a graph.
#pragma once

#include "ggml-backend.h"

bool pg_supports(ggml_backend_dev_t device, const struct ggml_tensor * node);

// Why it cannot; NULL when it can.
const char * pg_obstacle(ggml_backend_dev_t device, const struct ggml_tensor * node);
