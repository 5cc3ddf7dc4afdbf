// The jobs of one rank's thread, done in order.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct job_node job_node;

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    job_node * first, * last;
    _Atomic int n_pending;  // posted and not done
    _Atomic bool is_closed;
    double spin_s;  // how long a thread looks by itself before it sleeps until it is woken
} rank_queue;

void pg_queue_init(rank_queue * queue);
void pg_queue_destroy(rank_queue * queue);

// Does jobs on the calling thread until the queue is closed and empty.
void pg_queue_serve(rank_queue * queue);
void pg_queue_post(rank_queue * queue, void (*job)(void *), void * argument);

// Returns when at most n_left jobs are not done.
void pg_queue_wait(rank_queue * queue, int n_left);
int pg_queue_n_pending(rank_queue * queue);
void pg_queue_close(rank_queue * queue);
