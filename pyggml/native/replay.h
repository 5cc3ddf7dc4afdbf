// A plan's launches recorded once and replayed: one CUDA graph for each stretch of its steps that needs no host.
#pragma once

#include "cuda_api.h"
#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pg_replay pg_replay;

// Launches the steps `first` to `last` of a plan; returns as pg_plan_start does.
typedef int (*pg_walk)(pg_plan * plan, int first, int last);

pg_replay * pg_replay_new(const pgc_api * api, ggml_backend_t backend);
void pg_replay_free(pg_replay * replay);

enum pg_replay_state pg_replay_state_of(const pg_replay * replay, const char ** why);

// Gives up for good; the plan is then walked in every run.
void pg_replay_refuse(pg_replay * replay, const char * why);

// Drops what was recorded; the next run but the first is recorded anew.
void pg_replay_forget(pg_replay * replay);

// Counts a run; whether it is the one to record in. The same one on all ranks, also where a replay is refused.
bool pg_replay_is_due(pg_replay * replay);

// Records one stretch without running it; stretches are recorded in the order in which they are launched.
// False when it cannot be: the replay is then refused. streams_weights: as capture_begin has it.
bool pg_replay_record(pg_replay * replay, pg_walk walk, pg_plan * plan, int first, int last, bool streams_weights);

// Launches the recorded stretch number `stretch`; a ggml_status.
int pg_replay_launch(pg_replay * replay, int stretch);

#ifdef __cplusplus
}
#endif
