// Runs of plans: a whole one of all ranks, or steps that follow one another on cards without the host between them.
#pragma once

#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

// A point in a card's work (cuda/relay.cu).
typedef struct pgc_mark pgc_mark;

// A stream beside a backend's (cuda/side.cu).
typedef struct pgc_side pgc_side;

// One rank's part of a run; status is a ggml_status or, when a collective failed, an enum pg_fault + 100.
// For steps that follow one another: with `fed` that input takes the likeliest tokens of the step before, of which this
// rank's begin at first_id, and is not among the inputs; outputs then lie in pinned memory and are there at the mark.
typedef struct pg_run {
    pg_plan * plan;
    const pg_transfer * inputs;
    const pg_transfer * outputs;
    int n_inputs, n_outputs;
    int status;
    struct ggml_tensor * fed;
    int64_t first_id;
    pgc_mark * mark;
    struct pg_run * second;  // a run that is walked in turns with this one, or NULL
    pgc_side * side;         // where the sums of both travel beside the other's computing; NULL: nowhere
} pg_run;

// Posts each rank's part to its thread; pg_group_wait(group, rank, 0) waits. Parts without a plan are skipped.
void pg_runs_post(pg_group * group, pg_run * runs);
void pg_runs_finish(pg_group * group, pg_run * runs);

// Whether a step of this plan can be fed by the one before: it is recorded, it chooses from its logits, and where there
// are several ranks a card sums by itself what each of them chose.
bool pg_plan_can_feed(const pg_plan * plan);

// begin launches a step behind what its card has to do, and returns; end waits for it. A plan that is one rank's is begun
// and ended by its rank's thread, and pg_group_wait waits for both.
int pg_run_begin(pg_run * run);
int pg_run_end(pg_run * run);
void pg_runs_begin(pg_group * group, pg_run * runs);
void pg_runs_end(pg_group * group, pg_run * runs);

#ifdef __cplusplus
}
#endif
