// Collectives through host memory, for ranks on any devices. Each rank's thread calls them in the same order;
// they give PG_OK or the fault that ended them.
#pragma once

#include "rendezvous.h"

typedef struct host_collectives host_collectives;

host_collectives * pg_host_new(rendezvous * meeting);
void pg_host_free(host_collectives * host);

// Messages between ranks that this mover serves go its way; it is freed with the rest.
void pg_host_use(host_collectives * host, const pg_mover * mover);

// Memory for sums of up to n_elements.
bool pg_host_reserve(host_collectives * host, int64_t n_elements);

// Of F32, BF16 or F16, added up in float, slice by slice in rank order, so that all ranks hold the same bits.
int pg_host_all_reduce(host_collectives * host, int rank, ggml_backend_t backend, struct ggml_tensor * tensor);

// Rank parts lie behind each other in the outermost dimension of `whole`.
int pg_host_all_gather(host_collectives * host, int rank, ggml_backend_t backend, struct ggml_tensor * part, struct ggml_tensor * whole);
int pg_host_broadcast(host_collectives * host, int rank, ggml_backend_t backend, struct ggml_tensor * tensor, int root);

// A sender is ahead of its receiver by two messages at most.
int pg_host_send(host_collectives * host, int rank, ggml_backend_t backend, struct ggml_tensor * tensor, int to);
int pg_host_recv(host_collectives * host, int rank, ggml_backend_t backend, struct ggml_tensor * tensor, int from);
