// What a device's backend module can be told and asked.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

void pg_set_n_threads(ggml_backend_t backend, int n_threads);
int pg_extra_buffer_types(ggml_backend_dev_t device, ggml_backend_buffer_type_t * out, int max);

// The first buffer type in which the device can multiply by a weight of this type and shape; -1 if none.
int pg_weight_buffer_type(ggml_backend_dev_t device, enum ggml_type type, const int64_t * ne, bool experts,
                          const ggml_backend_buffer_type_t * candidates, int n);

// Where results of graphs lie: the device's own buffers, on processors each tensor at a multiple of a cache line.
ggml_backend_buffer_type_t pg_result_buffer_type(ggml_backend_dev_t device);

#ifdef __cplusplus
}
#endif
