// Lets SIGINT end a computation of the CPU backend. One at a time, on the main thread.
#pragma once

#include "ggml-backend.h"

void pg_interrupt_begin(ggml_backend_t backend);
void pg_interrupt_end(ggml_backend_t backend);
