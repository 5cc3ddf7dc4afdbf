#include "host_collectives.h"

#include <stdlib.h>
#include <string.h>

#define N_WIDE 1024  // numbers that are wide at a time

typedef struct {
    void * data;
    size_t capacity, size;
    unsigned is_full;
} mail;

typedef struct {
    mail box[PG_N_MAIL];
    int next_in, next_out;
} channel;

typedef struct {
    int64_t n_elements;
    enum ggml_type type;
} summand;

struct host_collectives {
    rendezvous * meeting;
    int n_ranks;
    channel * channels;  // [from * n_ranks + to]
    void ** slots;       // each rank's summand: its tensor where the host can read it, else a staging copy
    void ** staging;
    size_t * staging_size;
    summand * summands;
    void * sum;          // in the summands' type
    size_t sum_size;
    pg_mover mover;
};

static void * grown(void * memory, size_t * capacity, size_t size) {
    if (*capacity < size) {
        free(memory);
        memory = malloc(size);
        *capacity = memory ? size : 0;
    }
    return memory;
}

host_collectives * pg_host_new(rendezvous * meeting) {
    const int n_ranks = meeting->n_ranks;
    host_collectives * host = calloc(1, sizeof(host_collectives));
    host->meeting = meeting;
    host->n_ranks = n_ranks;
    host->channels = calloc((size_t) n_ranks * n_ranks, sizeof(channel));
    host->slots = calloc(n_ranks, sizeof(void *));
    host->staging = calloc(n_ranks, sizeof(void *));
    host->staging_size = calloc(n_ranks, sizeof(size_t));
    host->summands = calloc(n_ranks, sizeof(summand));
    return host;
}

void pg_host_use(host_collectives * host, const pg_mover * mover) {
    host->mover = *mover;
}

void pg_host_free(host_collectives * host) {
    if (host->mover.free) {
        host->mover.free(host->mover.self);
    }
    for (int i = 0; i < host->n_ranks; i++) {
        free(host->staging[i]);
    }
    for (int i = 0; i < host->n_ranks * host->n_ranks; i++) {
        for (int k = 0; k < PG_N_MAIL; k++) {
            free(host->channels[i].box[k].data);
        }
    }
    free(host->channels);
    free(host->slots);
    free(host->staging);
    free(host->staging_size);
    free(host->summands);
    free(host->sum);
    free(host);
}

bool pg_host_reserve(host_collectives * host, int64_t n_elements) {
    host->sum = grown(host->sum, &host->sum_size, n_elements * sizeof(float));
    return host->sum_size >= n_elements * sizeof(float);
}

static int fail(host_collectives * host, int rank, const char * text) {
    return pg_rendezvous_fail(host->meeting, PG_FAULT_TRANSPORT, rank, text);
}

static bool is_host(const struct ggml_tensor * tensor) {
    return ggml_backend_buffer_is_host(tensor->view_src ? tensor->view_src->buffer : tensor->buffer);
}

// Makes a rank's tensor readable by all and tells where; waits for the rank's own device.
static int publish(host_collectives * host, int rank, ggml_backend_t backend, struct ggml_tensor * tensor) {
    ggml_backend_synchronize(backend);
    const size_t size = ggml_nbytes(tensor);
    if (is_host(tensor)) {
        host->slots[rank] = tensor->data;
        return PG_OK;
    }
    host->staging[rank] = grown(host->staging[rank], &host->staging_size[rank], size);
    if (!host->staging[rank]) {
        return fail(host, rank, "no host memory for a collective");
    }
    ggml_backend_tensor_get(tensor, host->staging[rank], 0, size);
    host->slots[rank] = host->staging[rank];
    return PG_OK;
}

static void add_up(host_collectives * host, int64_t start, int64_t stop) {
    float * restrict sum = host->sum;
    memcpy(sum + start, (const float *) host->slots[0] + start, (stop - start) * sizeof(float));
    for (int r = 1; r < host->n_ranks; r++) {
        const float * restrict part = host->slots[r];
        for (int64_t i = start; i < stop; i++) {
            sum[i] += part[i];
        }
    }
}

static void widen(enum ggml_type type, const void * from, int64_t start, float * to, int64_t n) {
    if (type == GGML_TYPE_BF16) {
        ggml_bf16_to_fp32_row((const ggml_bf16_t *) from + start, to, n);
    } else {
        ggml_fp16_to_fp32_row((const ggml_fp16_t *) from + start, to, n);
    }
}

static void narrow(enum ggml_type type, const float * from, void * to, int64_t start, int64_t n) {
    if (type == GGML_TYPE_BF16) {
        ggml_fp32_to_bf16_row(from, (ggml_bf16_t *) to + start, n);
    } else {
        ggml_fp32_to_fp16_row(from, (ggml_fp16_t *) to + start, n);
    }
}

// Sums of 16-bit numbers in float, rounded once.
static void add_up_wide(host_collectives * host, enum ggml_type type, int64_t start, int64_t stop) {
    float total[N_WIDE], part[N_WIDE];
    for (int64_t at = start; at < stop; at += N_WIDE) {
        const int64_t n = stop - at < N_WIDE ? stop - at : N_WIDE;
        widen(type, host->slots[0], at, total, n);
        for (int r = 1; r < host->n_ranks; r++) {
            widen(type, host->slots[r], at, part, n);
            for (int64_t i = 0; i < n; i++) {
                total[i] += part[i];
            }
        }
        narrow(type, total, host->sum, at, n);
    }
}

int pg_host_all_reduce(host_collectives * host, int rank, ggml_backend_t backend, struct ggml_tensor * tensor) {
    const int64_t n = ggml_nelements(tensor);
    if (ggml_nbytes(tensor) > host->sum_size) {
        return fail(host, rank, "a sum larger than what was reserved");
    }
    host->summands[rank] = (summand) { n, tensor->type };
    int fault = publish(host, rank, backend, tensor);
    if (fault || (fault = pg_rendezvous_meet(host->meeting, rank, "all_reduce"))) {
        return fault;
    }
    for (int r = 0; r < host->n_ranks; r++) {
        if (host->summands[r].n_elements != n || host->summands[r].type != tensor->type) {
            return fail(host, rank, "ranks sum tensors of different sizes or types");
        }
    }
    const int64_t start = n * rank / host->n_ranks, stop = n * (rank + 1) / host->n_ranks;
    if (tensor->type == GGML_TYPE_F32) {
        add_up(host, start, stop);
    } else {
        add_up_wide(host, tensor->type, start, stop);
    }
    if ((fault = pg_rendezvous_meet(host->meeting, rank, "all_reduce"))) {
        return fault;
    }
    // No third meeting: the next sum begins only when all ranks have met again, this one copied.
    ggml_backend_tensor_set(tensor, host->sum, 0, ggml_nbytes(tensor));
    return PG_OK;
}

int pg_host_all_gather(host_collectives * host, int rank, ggml_backend_t backend, struct ggml_tensor * part, struct ggml_tensor * whole) {
    int fault = publish(host, rank, backend, part);
    if (fault || (fault = pg_rendezvous_meet(host->meeting, rank, "all_gather"))) {
        return fault;
    }
    const size_t size = ggml_nbytes(part);
    for (int r = 0; r < host->n_ranks; r++) {
        ggml_backend_tensor_set(whole, host->slots[r], r * size, size);
    }
    return pg_rendezvous_meet(host->meeting, rank, "all_gather");
}

int pg_host_broadcast(host_collectives * host, int rank, ggml_backend_t backend, struct ggml_tensor * tensor, int root) {
    int fault = rank == root ? publish(host, rank, backend, tensor) : PG_OK;
    if (fault || (fault = pg_rendezvous_meet(host->meeting, rank, "broadcast"))) {
        return fault;
    }
    if (rank != root) {
        ggml_backend_synchronize(backend);
        ggml_backend_tensor_set(tensor, host->slots[root], 0, ggml_nbytes(tensor));
    }
    return pg_rendezvous_meet(host->meeting, rank, "broadcast");
}

static bool is_moved(const host_collectives * host, int from, int to) {
    return host->mover.can_move && host->mover.can_move(host->mover.self, from, to);
}

static int has_sent(host_collectives * host, channel * c) {
    mail * box = &c->box[c->next_in];
    c->next_in = (c->next_in + 1) % PG_N_MAIL;
    pg_rendezvous_set(host->meeting, &box->is_full, 1);
    return PG_OK;
}

int pg_host_send(host_collectives * host, int rank, ggml_backend_t backend, struct ggml_tensor * tensor, int to) {
    channel * c = &host->channels[rank * host->n_ranks + to];
    mail * box = &c->box[c->next_in];
    const int fault = pg_rendezvous_await(host->meeting, rank, to, &box->is_full, 1, "send");
    if (fault) {
        return fault;
    }
    box->size = ggml_nbytes(tensor);
    if (is_moved(host, rank, to)) {
        char why[200];
        if (!host->mover.put(host->mover.self, rank, to, c->next_in, tensor, why, sizeof(why))) {
            return fail(host, rank, why);
        }
        return has_sent(host, c);
    }
    ggml_backend_synchronize(backend);
    box->data = grown(box->data, &box->capacity, box->size);
    if (!box->data) {
        return fail(host, rank, "no host memory for a send");
    }
    ggml_backend_tensor_get(tensor, box->data, 0, box->size);
    return has_sent(host, c);
}

int pg_host_recv(host_collectives * host, int rank, ggml_backend_t backend, struct ggml_tensor * tensor, int from) {
    channel * c = &host->channels[from * host->n_ranks + rank];
    mail * box = &c->box[c->next_out];
    const int fault = pg_rendezvous_await(host->meeting, rank, from, &box->is_full, 0, "recv");
    if (fault) {
        return fault;
    }
    if (box->size != ggml_nbytes(tensor)) {
        return fail(host, rank, "send and recv have different sizes");
    }
    if (is_moved(host, from, rank)) {
        char why[200];
        if (!host->mover.take(host->mover.self, from, rank, c->next_out, tensor, why, sizeof(why))) {
            return fail(host, rank, why);
        }
    } else {
        ggml_backend_synchronize(backend);
        ggml_backend_tensor_set(tensor, box->data, 0, box->size);
    }
    c->next_out = (c->next_out + 1) % PG_N_MAIL;
    pg_rendezvous_set(host->meeting, &box->is_full, 0);
    return PG_OK;
}
