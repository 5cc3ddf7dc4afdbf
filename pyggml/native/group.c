// Ranks that compute together: a thread's queue for each, one rendezvous, and ways to sum. What happens in
// host memory is in host_collectives.c; transports come from outside and take the sums that they were added for.

#include "group.h"

#include "host_collectives.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_TRANSPORTS 4

struct pg_group {
    int n_ranks;
    rank_queue * queues;
    rendezvous meeting;
    host_collectives * host;
    pg_transport transports[MAX_TRANSPORTS];
    int64_t min_elements[MAX_TRANSPORTS], max_elements[MAX_TRANSPORTS];
    int n_transports;
    int64_t * n_reduces;
    int64_t * reduce_us;
    bool is_serial;
    pthread_mutex_t computing;  // held by the rank that computes, where ranks are serial
};

static void abort_transports(void * self) {
    pg_group * group = self;
    for (int i = 0; i < group->n_transports; i++) {
        if (group->transports[i].abort) {
            group->transports[i].abort(group->transports[i].self);
        }
    }
}

pg_group * pg_group_new(int n_ranks, double deadline_s) {
    pg_group * group = calloc(1, sizeof(pg_group));
    group->n_ranks = n_ranks;
    group->queues = calloc(n_ranks, sizeof(rank_queue));
    group->n_reduces = calloc(n_ranks, sizeof(int64_t));
    group->reduce_us = calloc(n_ranks, sizeof(int64_t));
    for (int i = 0; i < n_ranks; i++) {
        pg_queue_init(&group->queues[i]);
    }
    pg_rendezvous_init(&group->meeting, n_ranks, deadline_s, group->queues, abort_transports, group);
    group->host = pg_host_new(&group->meeting);
    pthread_mutex_init(&group->computing, NULL);
    return group;
}

int pg_group_n_ranks(const pg_group * group) {
    return group->n_ranks;
}

void pg_group_free(pg_group * group) {
    pg_group_clear_transports(group);
    pg_host_free(group->host);
    pg_rendezvous_destroy(&group->meeting);
    pthread_mutex_destroy(&group->computing);
    for (int i = 0; i < group->n_ranks; i++) {
        pg_queue_destroy(&group->queues[i]);
    }
    free(group->queues);
    free(group->n_reduces);
    free(group->reduce_us);
    free(group);
}

bool pg_group_reserve(pg_group * group, int64_t n_elements) {
    return pg_host_reserve(group->host, n_elements);
}

void pg_group_add_transport(pg_group * group, const pg_transport * transport, int64_t min_elements, int64_t max_elements) {
    if (group->n_transports < MAX_TRANSPORTS) {
        group->transports[group->n_transports] = *transport;
        group->min_elements[group->n_transports] = min_elements;
        group->max_elements[group->n_transports++] = max_elements;
    }
}

void pg_group_set_mover(pg_group * group, const pg_mover * mover) {
    pg_host_use(group->host, mover);
}

void pg_group_clear_transports(pg_group * group) {
    for (int i = 0; i < group->n_transports; i++) {
        if (group->transports[i].free) {
            group->transports[i].free(group->transports[i].self);
        }
    }
    group->n_transports = 0;
}

void pg_group_fail(pg_group * group, int fault, int rank, const char * text) {
    pg_rendezvous_fail(&group->meeting, fault, rank, text);
}

int pg_group_fault(const pg_group * group, int * rank, char * text, size_t size) {
    *rank = group->meeting.fault_rank;
    snprintf(text, size, "%s", group->meeting.fault_text);
    return group->meeting.fault;
}

// NULL for host memory.
static const pg_transport * transport_for(const pg_group * group, const struct ggml_tensor * tensor) {
    const int64_t n = (ggml_nbytes(tensor) + sizeof(float) - 1) / sizeof(float);
    for (int i = group->n_transports - 1; i >= 0; i--) {
        if (n >= group->min_elements[i] && n <= group->max_elements[i]) {
            return &group->transports[i];
        }
    }
    return NULL;
}

bool pg_group_can_capture(const pg_group * group, enum pg_op op, const struct ggml_tensor * tensor) {
    const pg_transport * transport = op == PG_ALL_REDUCE ? transport_for(group, tensor) : NULL;
    return transport && transport->can_capture;
}

bool pg_group_can_add(const pg_group * group, const struct ggml_tensor * tensor) {
    const pg_transport * transport = transport_for(group, tensor);
    return transport && transport->can_add && transport->can_capture;
}

static int sum(pg_group * group, int rank, ggml_backend_t backend, struct ggml_tensor * tensor) {
    const pg_transport * transport = transport_for(group, tensor);
    if (!transport) {
        return pg_host_all_reduce(group->host, rank, backend, tensor);
    }
    const int fault = transport->all_reduce(transport->self, rank, backend, tensor);
    return fault ? pg_rendezvous_fail(&group->meeting, fault, rank, transport->name) : group->meeting.fault;
}

static int all_reduce(pg_group * group, int rank, ggml_backend_t backend, struct ggml_tensor * tensor) {
    const int64_t start_us = ggml_time_us();
    const int fault = sum(group, rank, backend, tensor);
    group->n_reduces[rank]++;
    group->reduce_us[rank] += ggml_time_us() - start_us;
    return fault;
}

int pg_group_step(pg_group * group, int rank, ggml_backend_t backend, enum pg_op op, struct ggml_tensor * tensor,
                  struct ggml_tensor * other, int peer) {
    if (group->meeting.fault) {
        return group->meeting.fault;
    }
    switch (op) {
        case PG_ALL_REDUCE: return all_reduce(group, rank, backend, tensor);
        case PG_ALL_GATHER: return pg_host_all_gather(group->host, rank, backend, tensor, other);
        case PG_BROADCAST:  return pg_host_broadcast(group->host, rank, backend, tensor, peer);
        case PG_SEND:       return pg_host_send(group->host, rank, backend, tensor, peer);
        case PG_RECV:       return pg_host_recv(group->host, rank, backend, tensor, peer);
        case PG_COMPUTE:
        case PG_CHOOSE:
        case PG_MASK:       break;
    }
    return PG_OK;
}

int pg_group_finish(pg_group * group, int rank, ggml_backend_t backend) {
    for (int i = 0; i < group->n_transports; i++) {
        pg_transport * transport = &group->transports[i];
        const int fault = transport->poll ? transport->poll(transport->self, rank, backend, group->meeting.deadline_s) : PG_OK;
        if (fault) {
            return pg_rendezvous_fail(&group->meeting, fault, rank, transport->name);
        }
    }
    return group->meeting.fault;
}

int pg_group_meet(pg_group * group, int rank, const char * what) {
    return pg_rendezvous_meet(&group->meeting, rank, what);
}

void pg_group_count_reduces(pg_group * group, int rank, int64_t n) {
    group->n_reduces[rank] += n;
}

int64_t pg_group_n_reduces(const pg_group * group, int rank) {
    return group->n_reduces[rank];
}

double pg_group_reduce_s(const pg_group * group, int rank) {
    return 1e-6 * (double) group->reduce_us[rank];
}

void pg_group_serve(pg_group * group, int rank) {
    pg_queue_serve(&group->queues[rank]);
}

void pg_group_post(pg_group * group, int rank, pg_job job, void * argument) {
    pg_queue_post(&group->queues[rank], job, argument);
}

void pg_group_wait(pg_group * group, int rank, int n_left) {
    pg_queue_wait(&group->queues[rank], n_left);
}

void pg_group_serialise(pg_group * group, bool is_serial) {
    group->is_serial = is_serial;
}

bool pg_group_is_serial(const pg_group * group) {
    return group->is_serial;
}

void pg_group_lock(pg_group * group, bool is_held) {
    if (is_held) {
        pthread_mutex_lock(&group->computing);
    } else {
        pthread_mutex_unlock(&group->computing);
    }
}

void pg_group_spin(pg_group * group, double seconds) {
    for (int i = 0; i < group->n_ranks; i++) {
        group->queues[i].spin_s = seconds;
    }
}

void pg_group_close(pg_group * group) {
    for (int i = 0; i < group->n_ranks; i++) {
        pg_queue_close(&group->queues[i]);
    }
}
