#include "rank_queue.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#define STEP_SPINS 10  // a step takes longer than the pause between two

struct job_node {
    void (*job)(void *);
    void * argument;
    job_node * next;
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

// Looks, with the lock released, until the number of jobs is within the limits or the time is over.
static void look(rank_queue * q, int least, int most, double for_s) {
    pthread_mutex_unlock(&q->lock);
    for (const double end_s = now_s() + for_s; !q->is_closed && (q->n_pending < least || q->n_pending > most);) {
        if (now_s() > end_s) {
            break;
        }
        sched_yield();
    }
    pthread_mutex_lock(&q->lock);
}

void pg_queue_init(rank_queue * q) {
    *q = (rank_queue) { .n_pending = 0 };
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
}

void pg_queue_destroy(rank_queue * q) {
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->changed);
}

void pg_queue_serve(rank_queue * q) {
    bool is_first = true;
    pthread_mutex_lock(&q->lock);
    while (true) {
        if (q->spin_s > 0 && !is_first) {
            look(q, 1, INT_MAX, q->spin_s);
        }
        is_first = false;
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

void pg_queue_post(rank_queue * q, void (*job)(void *), void * argument) {
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

void pg_queue_wait(rank_queue * q, int n_left) {
    pthread_mutex_lock(&q->lock);
    if (q->spin_s > 0) {
        look(q, 0, n_left, STEP_SPINS * q->spin_s);
    }
    while (q->n_pending > n_left) {
        pthread_cond_wait(&q->changed, &q->lock);
    }
    pthread_mutex_unlock(&q->lock);
}

int pg_queue_n_pending(rank_queue * q) {
    pthread_mutex_lock(&q->lock);
    const int n = q->n_pending;
    pthread_mutex_unlock(&q->lock);
    return n;
}

void pg_queue_close(rank_queue * q) {
    pthread_mutex_lock(&q->lock);
    q->is_closed = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}
