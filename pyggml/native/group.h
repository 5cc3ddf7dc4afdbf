// Ranks that compute together: threads, rendezvous with a deadline, collectives through host memory.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pg_group pg_group;

// What ends a collective besides success. The first fault of a group stays; all later calls give it.
enum pg_fault { PG_OK = 0, PG_FAULT_TIMEOUT = 1, PG_FAULT_COMPUTE = 2, PG_FAULT_TRANSPORT = 3, PG_FAULT_CLOSED = 4 };

enum pg_op { PG_COMPUTE = 0, PG_ALL_REDUCE = 1, PG_ALL_GATHER = 2, PG_BROADCAST = 3, PG_SEND = 4, PG_RECV = 5, PG_CHOOSE = 6, PG_MASK = 7 };

// A way to sum over all ranks in place. Every rank calls all_reduce in the same order with tensors of
// one size and type, F32, BF16 or F16; it may return before the sum is there, as long as work started later on the same backend
// sees it. all_reduce returns PG_OK or a fault. poll, called after a rank's last step and before its
// backend is synchronised, returns once the rank's work is done or with a fault at the deadline.
// abort makes every call return soon, from any thread.
typedef struct {
    const char * name;
    void * self;
    int (*all_reduce)(void * self, int rank, ggml_backend_t backend, struct ggml_tensor * tensor);
    int (*poll)(void * self, int rank, ggml_backend_t backend, double deadline_s);
    void (*abort)(void * self);
    void (*free)(void * self);
    bool can_capture;  // all_reduce only launches, so that a stream that is recorded takes it
    bool can_add;  // to the sum, what pgc_api::sum_with names; counts only with can_capture
} pg_transport;

// Messages in flight between two ranks.
#define PG_N_MAIL 2

// A way to move messages between ranks' devices without the host. The group says which box of a pair is free or full;
// put and take only launch, in the order of each rank's own work. False, and why, where they cannot.
typedef struct {
    void * self;
    bool (*can_move)(void * self, int from, int to);
    bool (*put)(void * self, int from, int to, int box, const struct ggml_tensor * tensor, char * why, size_t why_size);
    bool (*take)(void * self, int from, int to, int box, struct ggml_tensor * tensor, char * why, size_t why_size);
    void (*free)(void * self);
} pg_mover;

pg_group * pg_group_new(int n_ranks, double deadline_s);
void pg_group_free(pg_group * group);
int pg_group_n_ranks(const pg_group * group);

// Host memory for sums of up to n_elements; no step may be in flight.
bool pg_group_reserve(pg_group * group, int64_t n_elements);

// Transports for sums of min_elements to max_elements F32 numbers, or of as many bytes, tried from the last one set to the first; sums that
// none of them takes go through host memory. The group owns and frees them. A transport's name is read
// when it fails, so it may tell the reason then.
void pg_group_add_transport(pg_group * group, const pg_transport * transport, int64_t min_elements, int64_t max_elements);
// Takes over a mover; what it cannot move goes through host memory.
void pg_group_set_mover(pg_group * group, const pg_mover * mover);
void pg_group_clear_transports(pg_group * group);

// Records the first fault and makes every rank leave what it waits for.
void pg_group_fail(pg_group * group, int fault, int rank, const char * text);
int pg_group_fault(const pg_group * group, int * rank, char * text, size_t size);

// One collective step of a rank. `other` is the result of a gather, `peer` the root or partner.
int pg_group_step(pg_group * group, int rank, ggml_backend_t backend, enum pg_op op, struct ggml_tensor * tensor,
                  struct ggml_tensor * other, int peer);
int pg_group_finish(pg_group * group, int rank, ggml_backend_t backend);

// Whether a step only launches work on the rank's own device.
bool pg_group_can_capture(const pg_group * group, enum pg_op op, const struct ggml_tensor * tensor);

// Whether a sum of this tensor can also add a residual stream (pgc_api::sum_with).
bool pg_group_can_add(const pg_group * group, const struct ggml_tensor * tensor);

// Waits until all ranks are here; PG_OK or a fault.
int pg_group_meet(pg_group * group, int rank, const char * what);

// Counts sums that were launched, or taken back, without a call of pg_group_step.
void pg_group_count_reduces(pg_group * group, int rank, int64_t n);

// Counts since the start, for tests and reports.
int64_t pg_group_n_reduces(const pg_group * group, int rank);

// Seconds that a rank's thread spent in sums: all of a sum in host memory, its launch where a device does it in turn.
double pg_group_reduce_s(const pg_group * group, int rank);

// Rank threads: serve() runs on a thread of the caller's until close(); post() queues a job for one
// rank, in order; wait() returns when at most n_left of the jobs posted to it are not done.
typedef void (*pg_job)(void * argument);
void pg_group_serve(pg_group * group, int rank);
void pg_group_post(pg_group * group, int rank, pg_job job, void * argument);
void pg_group_wait(pg_group * group, int rank, int n_left);
void pg_group_close(pg_group * group);

// For diagnosis: ranks compute one at a time, each to its end, and wait for their own sums before they go on.
void pg_group_serialise(pg_group * group, bool is_serial);
bool pg_group_is_serial(const pg_group * group);
void pg_group_lock(pg_group * group, bool is_held);

// How long rank threads without a job, and those that wait for one, look by themselves before they sleep: ranks on
// cards leave the processor idle, and waking a thread costs more than launching a step. 0 at the start.
void pg_group_spin(pg_group * group, double seconds);

#ifdef __cplusplus
}
#endif
