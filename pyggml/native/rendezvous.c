#include "rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_LOOKS 4  // times per deadline that a waiting rank looks at the others

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

void pg_rendezvous_init(rendezvous * r, int n_ranks, double deadline_s, rank_queue * queues, void (*on_fault)(void *), void * self) {
    *r = (rendezvous) { .n_ranks = n_ranks, .deadline_s = deadline_s, .queues = queues, .on_fault = on_fault, .self = self };
    r->has_arrived = calloc(n_ranks, sizeof(bool));
    r->is_waiting = calloc(n_ranks, sizeof(bool));
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void pg_rendezvous_destroy(rendezvous * r) {
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    free(r->has_arrived);
    free(r->is_waiting);
}

int pg_rendezvous_fail(rendezvous * r, int fault, int rank, const char * text) {
    pthread_mutex_lock(&r->lock);
    if (r->fault == PG_OK) {
        r->fault_rank = rank;
        snprintf(r->fault_text, sizeof(r->fault_text), "%s", text);
        r->fault = fault;
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    r->on_fault(r->self);
    return r->fault;
}

// Whether a wait is in vain as things are: an awaited rank has nothing to do, or every rank waits.
// `peer` is the awaited rank, -1 stands for all that have not arrived at the rendezvous.
static bool is_stuck(rendezvous * r, int rank, int peer) {
    bool is_any_computing = false;
    for (int other = 0; other < r->n_ranks; other++) {
        const bool is_busy = other != rank && pg_queue_n_pending(&r->queues[other]) > 0;
        if (!is_busy && other != rank && (peer < 0 ? !r->has_arrived[other] : other == peer)) {
            return true;
        }
        is_any_computing |= is_busy && !r->is_waiting[other];
    }
    return !is_any_computing;
}

// Waits, with the lock held, while *word is `old`; a fault ends it, and so does a deadline's time
// in which it was stuck. A rank that computes for long is waited for. Returns whether the time ran out.
static bool wait_while(rendezvous * r, int rank, int peer, const unsigned * word, unsigned old) {
    int n_stuck = 0;
    unsigned n_waits = r->n_waits;
    r->is_waiting[rank] = true;
    struct timespec until = deadline_after(r->deadline_s / N_LOOKS);
    while (*word == old && r->fault == PG_OK && n_stuck < N_LOOKS) {
        if (pthread_cond_timedwait(&r->changed, &r->lock, &until) == ETIMEDOUT) {
            const bool is_idle = is_stuck(r, rank, peer) && r->n_waits == n_waits;
            n_stuck = is_idle ? n_stuck + 1 : 0;
            n_waits = r->n_waits;
            until = deadline_after(r->deadline_s / N_LOOKS);
        }
    }
    r->is_waiting[rank] = false;
    r->n_waits++;
    return *word == old && r->fault == PG_OK;
}

static int time_out(rendezvous * r, int rank, const char * what) {
    char text[160];
    snprintf(text, sizeof(text), "rank %d waited %.3g s in %s; another rank did not come", rank, r->deadline_s, what);
    return pg_rendezvous_fail(r, PG_FAULT_TIMEOUT, rank, text);
}

int pg_rendezvous_meet(rendezvous * r, int rank, const char * what) {
    bool has_expired = false;
    pthread_mutex_lock(&r->lock);
    const unsigned generation = r->generation;
    r->has_arrived[rank] = true;
    if (++r->n_arrived == r->n_ranks) {
        r->n_arrived = 0;
        memset(r->has_arrived, 0, r->n_ranks * sizeof(bool));
        r->generation++;
        pthread_cond_broadcast(&r->changed);
    } else {
        has_expired = wait_while(r, rank, -1, &r->generation, generation);
    }
    pthread_mutex_unlock(&r->lock);
    return has_expired && r->fault == PG_OK ? time_out(r, rank, what) : r->fault;
}

int pg_rendezvous_await(rendezvous * r, int rank, int peer, const unsigned * word, unsigned old, const char * what) {
    pthread_mutex_lock(&r->lock);
    const bool has_expired = wait_while(r, rank, peer, word, old);
    pthread_mutex_unlock(&r->lock);
    return has_expired && r->fault == PG_OK ? time_out(r, rank, what) : r->fault;
}

void pg_rendezvous_set(rendezvous * r, unsigned * word, unsigned value) {
    pthread_mutex_lock(&r->lock);
    *word = value;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}
