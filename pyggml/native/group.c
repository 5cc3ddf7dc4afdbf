// Ranks that compute together. Each rank has a thread that takes jobs in order; collectives meet at
// a barrier that gives up when any rank has failed, or after a deadline in which an awaited rank had no job
// or all ranks waited.
// Sums through host memory are taken slice by slice in rank order: all ranks hold the same bits.

#include "group.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_TRANSPORTS 4
#define N_MAIL 2  // messages in flight between two ranks
#define N_LOOKS 4  // times per deadline that a waiting rank looks at the others

typedef struct job_node {
    pg_job job;
    void * argument;
    struct job_node * next;
} job_node;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    job_node * first, * last;
    int n_pending;
    bool is_closed;
} job_queue;

typedef struct {
    void * data;
    size_t capacity, size;
    unsigned is_full;
} mail;

typedef struct {
    mail box[N_MAIL];
    int next_in, next_out;
} channel;

struct pg_group {
    int n_ranks;
    double deadline_s;
    job_queue * queues;
    channel * channels;  // [from * n_ranks + to]

    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_arrived;
    unsigned generation;
    unsigned n_waits;    // waits that came to their end
    bool * has_arrived;  // at the rendezvous of this generation
    bool * is_waiting;

    float ** slots;      // each rank's summand: its tensor where the host can read it, else a staging copy
    float ** staging;
    size_t * staging_size;
    int64_t * counts;    // the elements of each rank's summand
    float * sum;
    size_t sum_size;

    pg_transport transports[MAX_TRANSPORTS];
    int64_t min_elements[MAX_TRANSPORTS], max_elements[MAX_TRANSPORTS];
    int n_transports;

    _Atomic int fault;
    int fault_rank;
    char fault_text[512];
    int64_t * n_reduces;
};

static struct timespec deadline_after(double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t) seconds;
    t.tv_nsec += (long) ((seconds - (double) (time_t) seconds) * 1e9);
    if (t.tv_nsec >= 1000000000L) {
        t.tv_sec += 1;
        t.tv_nsec -= 1000000000L;
    }
    return t;
}

static void init_cond(pthread_cond_t * cond) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void * grown(void * memory, size_t * capacity, size_t size) {
    if (*capacity < size) {
        free(memory);
        memory = malloc(size);
        *capacity = memory ? size : 0;
    }
    return memory;
}

pg_group * pg_group_new(int n_ranks, double deadline_s) {
    pg_group * group = calloc(1, sizeof(pg_group));
    group->n_ranks = n_ranks;
    group->deadline_s = deadline_s;
    group->queues = calloc(n_ranks, sizeof(job_queue));
    group->channels = calloc((size_t) n_ranks * n_ranks, sizeof(channel));
    group->slots = calloc(n_ranks, sizeof(float *));
    group->staging = calloc(n_ranks, sizeof(float *));
    group->staging_size = calloc(n_ranks, sizeof(size_t));
    group->counts = calloc(n_ranks, sizeof(int64_t));
    group->has_arrived = calloc(n_ranks, sizeof(bool));
    group->is_waiting = calloc(n_ranks, sizeof(bool));
    group->n_reduces = calloc(n_ranks, sizeof(int64_t));
    pthread_mutex_init(&group->lock, NULL);
    init_cond(&group->changed);
    for (int i = 0; i < n_ranks; i++) {
        pthread_mutex_init(&group->queues[i].lock, NULL);
        init_cond(&group->queues[i].changed);
    }
    return group;
}

int pg_group_n_ranks(const pg_group * group) {
    return group->n_ranks;
}

void pg_group_free(pg_group * group) {
    pg_group_clear_transports(group);
    for (int i = 0; i < group->n_ranks; i++) {
        free(group->staging[i]);
        pthread_mutex_destroy(&group->queues[i].lock);
        pthread_cond_destroy(&group->queues[i].changed);
    }
    for (int i = 0; i < group->n_ranks * group->n_ranks; i++) {
        for (int k = 0; k < N_MAIL; k++) {
            free(group->channels[i].box[k].data);
        }
    }
    pthread_mutex_destroy(&group->lock);
    pthread_cond_destroy(&group->changed);
    free(group->queues);
    free(group->channels);
    free(group->slots);
    free(group->staging);
    free(group->counts);
    free(group->has_arrived);
    free(group->is_waiting);
    free(group->staging_size);
    free(group->n_reduces);
    free(group->sum);
    free(group);
}

bool pg_group_reserve(pg_group * group, int64_t n_elements) {
    group->sum = grown(group->sum, &group->sum_size, n_elements * sizeof(float));
    return group->sum_size >= n_elements * sizeof(float);
}

void pg_group_add_transport(pg_group * group, const pg_transport * transport, int64_t min_elements, int64_t max_elements) {
    if (group->n_transports < MAX_TRANSPORTS) {
        group->transports[group->n_transports] = *transport;
        group->min_elements[group->n_transports] = min_elements;
        group->max_elements[group->n_transports++] = max_elements;
    }
}

void pg_group_clear_transports(pg_group * group) {
    for (int i = 0; i < group->n_transports; i++) {
        if (group->transports[i].free) {
            group->transports[i].free(group->transports[i].self);
        }
    }
    group->n_transports = 0;
}

// Faults

void pg_group_fail(pg_group * group, int fault, int rank, const char * text) {
    pthread_mutex_lock(&group->lock);
    if (group->fault == PG_OK) {
        group->fault_rank = rank;
        snprintf(group->fault_text, sizeof(group->fault_text), "%s", text);
        group->fault = fault;
    }
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
    for (int i = 0; i < group->n_transports; i++) {
        if (group->transports[i].abort) {
            group->transports[i].abort(group->transports[i].self);
        }
    }
}

int pg_group_fault(const pg_group * group, int * rank, char * text, size_t size) {
    *rank = group->fault_rank;
    snprintf(text, size, "%s", group->fault_text);
    return group->fault;
}

static int time_out(pg_group * group, int rank, const char * what) {
    char text[160];
    snprintf(text, sizeof(text), "rank %d waited %.3g s in %s; another rank did not come", rank, group->deadline_s, what);
    pg_group_fail(group, PG_FAULT_TIMEOUT, rank, text);
    return group->fault;
}

static int n_pending(pg_group * group, int rank) {
    job_queue * q = &group->queues[rank];
    pthread_mutex_lock(&q->lock);
    const int n = q->n_pending;
    pthread_mutex_unlock(&q->lock);
    return n;
}

// Whether a wait is in vain as things are: an awaited rank has nothing to do, or every rank waits.
// `peer` is the awaited rank, -1 stands for all that have not arrived at the rendezvous.
static bool is_stuck(pg_group * group, int rank, int peer) {
    bool is_any_computing = false;
    for (int r = 0; r < group->n_ranks; r++) {
        const bool is_busy = r != rank && n_pending(group, r) > 0;
        if (!is_busy && r != rank && (peer < 0 ? !group->has_arrived[r] : r == peer)) {
            return true;
        }
        is_any_computing |= is_busy && !group->is_waiting[r];
    }
    return !is_any_computing;
}

// Waits, with the group's lock held, while *word is `old`; a fault ends it, and so does a deadline's time
// in which it was stuck. A rank that computes for long is waited for. Returns whether the time ran out.
static bool wait_while(pg_group * group, int rank, int peer, const unsigned * word, unsigned old) {
    int n_stuck = 0;
    unsigned n_waits = group->n_waits;
    group->is_waiting[rank] = true;
    struct timespec until = deadline_after(group->deadline_s / N_LOOKS);
    while (*word == old && group->fault == PG_OK && n_stuck < N_LOOKS) {
        if (pthread_cond_timedwait(&group->changed, &group->lock, &until) == ETIMEDOUT) {
            const bool is_idle = is_stuck(group, rank, peer) && group->n_waits == n_waits;
            n_stuck = is_idle ? n_stuck + 1 : 0;
            n_waits = group->n_waits;
            until = deadline_after(group->deadline_s / N_LOOKS);
        }
    }
    group->is_waiting[rank] = false;
    group->n_waits++;
    return *word == old && group->fault == PG_OK;
}

int pg_group_meet(pg_group * group, int rank, const char * what) {
    bool expired = false;
    pthread_mutex_lock(&group->lock);
    const unsigned generation = group->generation;
    group->has_arrived[rank] = true;
    if (++group->n_arrived == group->n_ranks) {
        group->n_arrived = 0;
        memset(group->has_arrived, 0, group->n_ranks * sizeof(bool));
        group->generation++;
        pthread_cond_broadcast(&group->changed);
    } else {
        expired = wait_while(group, rank, -1, &group->generation, generation);
    }
    pthread_mutex_unlock(&group->lock);
    if (expired && group->fault == PG_OK) {
        return time_out(group, rank, what);
    }
    return group->fault;
}

// Collectives through host memory

static bool is_host(const struct ggml_tensor * tensor) {
    return ggml_backend_buffer_is_host(tensor->view_src ? tensor->view_src->buffer : tensor->buffer);
}

// Makes a rank's tensor readable by all and tells where; waits for the rank's own device.
static int publish(pg_group * group, int rank, ggml_backend_t backend, struct ggml_tensor * tensor) {
    ggml_backend_synchronize(backend);
    const size_t size = ggml_nbytes(tensor);
    if (is_host(tensor)) {
        group->slots[rank] = tensor->data;
        return PG_OK;
    }
    group->staging[rank] = grown(group->staging[rank], &group->staging_size[rank], size);
    if (!group->staging[rank]) {
        pg_group_fail(group, PG_FAULT_TRANSPORT, rank, "no host memory for a collective");
        return group->fault;
    }
    ggml_backend_tensor_get(tensor, group->staging[rank], 0, size);
    group->slots[rank] = group->staging[rank];
    return PG_OK;
}

static int reduce_on_host(pg_group * group, int rank, ggml_backend_t backend, struct ggml_tensor * tensor) {
    const int64_t n = ggml_nelements(tensor);
    if (n * sizeof(float) > group->sum_size) {
        pg_group_fail(group, PG_FAULT_TRANSPORT, rank, "a sum larger than what was reserved");
        return group->fault;
    }
    group->counts[rank] = n;
    if (publish(group, rank, backend, tensor) || pg_group_meet(group, rank, "all_reduce")) {
        return group->fault;
    }
    for (int r = 0; r < group->n_ranks; r++) {
        if (group->counts[r] != n) {
            pg_group_fail(group, PG_FAULT_TRANSPORT, rank, "ranks sum tensors of different sizes");
            return group->fault;
        }
    }
    const int64_t start = n * rank / group->n_ranks, stop = n * (rank + 1) / group->n_ranks;
    memcpy(group->sum + start, group->slots[0] + start, (stop - start) * sizeof(float));
    for (int r = 1; r < group->n_ranks; r++) {
        const float * restrict summand = group->slots[r];
        float * restrict sum = group->sum;
        for (int64_t i = start; i < stop; i++) {
            sum[i] += summand[i];
        }
    }
    if (pg_group_meet(group, rank, "all_reduce")) {
        return group->fault;
    }
    // No third meeting: the next sum begins only when all ranks have met again, this one copied.
    ggml_backend_tensor_set(tensor, group->sum, 0, n * sizeof(float));
    return PG_OK;
}

// Rank parts lie behind each other in the result's outermost dimension.
static int gather_on_host(pg_group * group, int rank, ggml_backend_t backend, struct ggml_tensor * part, struct ggml_tensor * whole) {
    if (publish(group, rank, backend, part) || pg_group_meet(group, rank, "all_gather")) {
        return group->fault;
    }
    const size_t size = ggml_nbytes(part);
    for (int r = 0; r < group->n_ranks; r++) {
        ggml_backend_tensor_set(whole, group->slots[r], r * size, size);
    }
    return pg_group_meet(group, rank, "all_gather");
}

static int broadcast_on_host(pg_group * group, int rank, ggml_backend_t backend, struct ggml_tensor * tensor, int root) {
    if (rank == root ? publish(group, rank, backend, tensor) : PG_OK) {
        return group->fault;
    }
    if (pg_group_meet(group, rank, "broadcast")) {
        return group->fault;
    }
    if (rank != root) {
        ggml_backend_synchronize(backend);
        ggml_backend_tensor_set(tensor, group->slots[root], 0, ggml_nbytes(tensor));
    }
    return pg_group_meet(group, rank, "broadcast");
}

static int send_mail(pg_group * group, int rank, ggml_backend_t backend, struct ggml_tensor * tensor, int to) {
    channel * c = &group->channels[rank * group->n_ranks + to];
    mail * box = &c->box[c->next_in];
    pthread_mutex_lock(&group->lock);
    const bool expired = wait_while(group, rank, to, &box->is_full, 1);
    pthread_mutex_unlock(&group->lock);
    if (expired || group->fault) {
        return group->fault ? group->fault : time_out(group, rank, "send");
    }
    ggml_backend_synchronize(backend);
    box->size = ggml_nbytes(tensor);
    box->data = grown(box->data, &box->capacity, box->size);
    if (!box->data) {
        pg_group_fail(group, PG_FAULT_TRANSPORT, rank, "no host memory for a send");
        return group->fault;
    }
    ggml_backend_tensor_get(tensor, box->data, 0, box->size);
    c->next_in = (c->next_in + 1) % N_MAIL;
    pthread_mutex_lock(&group->lock);
    box->is_full = 1;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
    return PG_OK;
}

static int take_mail(pg_group * group, int rank, ggml_backend_t backend, struct ggml_tensor * tensor, int from) {
    channel * c = &group->channels[from * group->n_ranks + rank];
    mail * box = &c->box[c->next_out];
    pthread_mutex_lock(&group->lock);
    const bool expired = wait_while(group, rank, from, &box->is_full, 0);
    pthread_mutex_unlock(&group->lock);
    if (expired || group->fault) {
        return group->fault ? group->fault : time_out(group, rank, "recv");
    }
    if (box->size != ggml_nbytes(tensor)) {
        pg_group_fail(group, PG_FAULT_TRANSPORT, rank, "send and recv have different sizes");
        return group->fault;
    }
    ggml_backend_synchronize(backend);
    ggml_backend_tensor_set(tensor, box->data, 0, box->size);
    c->next_out = (c->next_out + 1) % N_MAIL;
    pthread_mutex_lock(&group->lock);
    box->is_full = 0;
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
    return PG_OK;
}

// NULL for host memory.
static const pg_transport * transport_for(const pg_group * group, const struct ggml_tensor * tensor) {
    const int64_t n = ggml_nelements(tensor);
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

int pg_group_step(pg_group * group, int rank, ggml_backend_t backend, enum pg_op op, struct ggml_tensor * tensor,
                  struct ggml_tensor * other, int peer) {
    if (group->fault) {
        return group->fault;
    }
    switch (op) {
        case PG_ALL_REDUCE: {
            group->n_reduces[rank]++;
            const pg_transport * transport = transport_for(group, tensor);
            if (!transport) {
                return reduce_on_host(group, rank, backend, tensor);
            }
            const int fault = transport->all_reduce(transport->self, rank, backend, tensor);
            if (fault) {
                pg_group_fail(group, fault, rank, transport->name);
            }
            return group->fault;
        }
        case PG_ALL_GATHER: return gather_on_host(group, rank, backend, tensor, other);
        case PG_BROADCAST:  return broadcast_on_host(group, rank, backend, tensor, peer);
        case PG_SEND:       return send_mail(group, rank, backend, tensor, peer);
        case PG_RECV:       return take_mail(group, rank, backend, tensor, peer);
        case PG_COMPUTE:    break;
    }
    return PG_OK;
}

int pg_group_finish(pg_group * group, int rank, ggml_backend_t backend) {
    for (int i = 0; i < group->n_transports; i++) {
        if (group->transports[i].poll) {
            const int fault = group->transports[i].poll(group->transports[i].self, rank, backend, group->deadline_s);
            if (fault) {
                pg_group_fail(group, fault, rank, group->transports[i].name);
                return group->fault;
            }
        }
    }
    return group->fault;
}

void pg_group_count_reduces(pg_group * group, int rank, int64_t n) {
    group->n_reduces[rank] += n;
}

int64_t pg_group_n_reduces(const pg_group * group, int rank) {
    return group->n_reduces[rank];
}

// Rank threads

void pg_group_serve(pg_group * group, int rank) {
    job_queue * q = &group->queues[rank];
    pthread_mutex_lock(&q->lock);
    while (true) {
        while (!q->first && !q->is_closed) {
            pthread_cond_wait(&q->changed, &q->lock);
        }
        job_node * node = q->first;
        if (!node) {
            break;
        }
        q->first = node->next;
        if (!q->first) {
            q->last = NULL;
        }
        pthread_mutex_unlock(&q->lock);
        node->job(node->argument);
        free(node);
        pthread_mutex_lock(&q->lock);
        q->n_pending--;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
}

void pg_group_post(pg_group * group, int rank, pg_job job, void * argument) {
    job_queue * q = &group->queues[rank];
    job_node * node = malloc(sizeof(job_node));
    *node = (job_node) { job, argument, NULL };
    pthread_mutex_lock(&q->lock);
    if (q->last) {
        q->last->next = node;
    } else {
        q->first = node;
    }
    q->last = node;
    q->n_pending++;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

void pg_group_wait(pg_group * group, int rank, int n_left) {
    job_queue * q = &group->queues[rank];
    pthread_mutex_lock(&q->lock);
    while (q->n_pending > n_left) {
        pthread_cond_wait(&q->changed, &q->lock);
    }
    pthread_mutex_unlock(&q->lock);
}

void pg_group_close(pg_group * group) {
    for (int i = 0; i < group->n_ranks; i++) {
        job_queue * q = &group->queues[i];
        pthread_mutex_lock(&q->lock);
        q->is_closed = true;
        pthread_cond_broadcast(&q->changed);
        pthread_mutex_unlock(&q->lock);
    }
}
