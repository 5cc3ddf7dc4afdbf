// One graph laid out and run on one backend.
#pragma once

#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "group.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pg_plan pg_plan;

// `size` bytes between host `data` and `tensor` at `offset`. With n_rows > 0 the tensor's integers choose rows of a
// table that has so many: a run with another number in it is refused, since a device would read or write elsewhere; with
// n_distinct > 1 also one that has a number twice among so many, which ggml-cuda does not survive.
typedef struct {
    struct ggml_tensor * tensor;
    void * data;
    size_t offset;
    size_t size;
    int64_t n_rows;
    int64_t n_distinct;
} pg_transfer;

// What becomes of a plan's recording: not wanted, not yet (it is made in the second run), made, or impossible here.
enum pg_replay_state { PG_REPLAY_OFF = 0, PG_REPLAY_WAITING = 1, PG_REPLAY_RECORDED = 2, PG_REPLAY_REFUSED = 3 };

// What the functions below return beside ggml's own states.
#define PG_STATUS_BAD_ROW 2

// Where a graph is cut: after node `end_node - 1` the rank takes part in a collective, or the CUDA module does something
// by itself: PG_CHOOSE the best of the logits `tensor` into `other`, PG_MASK fills `tensor` from the positions `other`
// with a window of `peer`.
typedef struct {
    int end_node;
    int op;  // enum pg_op
    struct ggml_tensor * tensor;
    struct ggml_tensor * other;
    int peer;
} pg_step;

// Where a plan runs: alone (group is NULL) or as a rank's; the CUDA module's table (pgc_api) of a plan on a card or
// NULL; its steps, and that which chooses from its logits or NULL.
typedef struct {
    ggml_backend_t backend;
    pg_group * group;
    int rank;
    const void * api;
    const pg_step * steps;
    int n_steps;
    const pg_step * choice;
} pg_seat;
pg_seat pg_plan_seat(const pg_plan * plan);

// Checks every node with the device and lets the backend optimise the graph. On a node that the
// device cannot run: NULL, and its index in *unsupported_node. The graph must outlive the plan.
// `steps` are in the order of their nodes.
pg_plan * pg_plan_new(ggml_backend_t backend, struct ggml_cgraph * graph, const pg_step * steps, int n_steps,
                      int * unsupported_node);

// Makes the plan one rank's of a group; only then may it have steps that are collectives.
void pg_plan_join(pg_plan * plan, pg_group * group, int rank);

// Gives a laid-out plan on a card the CUDA module's table (pgc_api); with may_fuse runs of nodes that its kernels
// know are computed as one; they are found when the plan first runs, as its group then is. -1 without host memory for them.
void pg_plan_use(pg_plan * plan, const void * api, bool may_fuse);
int pg_plan_n_fused(pg_plan * plan);

// Has such a plan recorded in its second run and replayed from then on.
// In a group either all ranks' plans are recorded or none. False without host memory.
bool pg_plan_replay(pg_plan * plan);

// To be called after tensors of the plan were moved: what was recorded is void, and recorded anew in the next run.
void pg_plan_changed(pg_plan * plan);
enum pg_replay_state pg_plan_replay_state(const pg_plan * plan, char * why, size_t why_size);

// Sizes the allocator for this plan without placing its tensors.
bool pg_plan_reserve(pg_plan * plan, ggml_gallocr_t galloc);

// Places the plan's tensors in the allocator's buffer. Plans that share an allocator overlap there.
bool pg_plan_layout(pg_plan * plan, ggml_gallocr_t galloc);

void pg_plan_free(pg_plan * plan);
int pg_plan_n_nodes(const pg_plan * plan);

// start: inputs and compute, returns at once where the backend can; read: waits, then copies out.
// Interruptible: SIGINT ends it with GGML_STATUS_ABORTED where the backend can stop; main thread only.
int pg_plan_start(pg_plan * plan, const pg_transfer * inputs, int n_inputs);
// Sends inputs; PG_STATUS_BAD_ROW for a number that is no row.
int pg_plan_send(pg_plan * plan, const pg_transfer * inputs, int n_inputs);
int pg_plan_start_interruptible(pg_plan * plan, const pg_transfer * inputs, int n_inputs);
void pg_plan_read(pg_plan * plan, const pg_transfer * outputs, int n_outputs);
int pg_plan_run(pg_plan * plan, const pg_transfer * inputs, int n_inputs, const pg_transfer * outputs, int n_outputs);

// The first transfer with a number that is no row, and the number; -1 if all are.
int pg_first_bad_row(const pg_transfer * transfers, int n, int64_t * value);

#ifdef __cplusplus
}
#endif
