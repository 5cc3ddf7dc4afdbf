// How ranks wait for each other: every wait ends with what it waits for, with any rank's fault, or after a
// deadline in which an awaited rank had no job or all ranks waited. The first fault stays.
#pragma once

#include "group.h"
#include "rank_queue.h"

#include <stdatomic.h>

typedef struct {
    int n_ranks;
    double deadline_s;
    rank_queue * queues;  // tell which ranks have something to do; the group's
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_arrived;
    unsigned generation;
    unsigned n_waits;    // waits that came to their end
    bool * has_arrived;  // at the rendezvous of this generation
    bool * is_waiting;

    _Atomic int fault;  // enum pg_fault
    int fault_rank;
    char fault_text[512];
    void (*on_fault)(void * self);  // called at every fault, without the lock
    void * self;
} rendezvous;

void pg_rendezvous_init(rendezvous * r, int n_ranks, double deadline_s, rank_queue * queues, void (*on_fault)(void *), void * self);
void pg_rendezvous_destroy(rendezvous * r);

// Records the first fault and ends every wait; gives the fault that stays.
int pg_rendezvous_fail(rendezvous * r, int fault, int rank, const char * text);

// All ranks come; `what` names the meeting should one not. The functions below give PG_OK or the fault.
int pg_rendezvous_meet(rendezvous * r, int rank, const char * what);

// Waits for `peer` to change *word from `old`, which it does by pg_rendezvous_set.
int pg_rendezvous_await(rendezvous * r, int rank, int peer, const unsigned * word, unsigned old, const char * what);
void pg_rendezvous_set(rendezvous * r, unsigned * word, unsigned value);
