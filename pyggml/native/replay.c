// Records a plan's launches as CUDA graphs in its second run and replays them from then on.
// The first run is plain: kernels are loaded, memory pools and library handles are made, none of which may happen while
// a stream is recorded. Recording runs nothing, so a plan that cannot be recorded is simply walked again.
// Belongs to the thread that runs the plan.

#include "replay.h"

#include "ggml-impl.h"

#include <stdlib.h>
#include <string.h>

struct pg_replay {
    const pgc_api * api;
    ggml_backend_t backend;
    pgc_graph ** graphs;
    int n_graphs, max_graphs;
    int n_made;  // graphs that are there: those of a window before stay, to become the next ones
    int n_runs;
    enum pg_replay_state state;
    char why[256];
};

pg_replay * pg_replay_new(const pgc_api * api, ggml_backend_t backend) {
    pg_replay * replay = calloc(1, sizeof(pg_replay));
    if (replay) {
        replay->api = api;
        replay->backend = backend;
        replay->state = PG_REPLAY_WAITING;
    }
    return replay;
}

static void drop_graphs(pg_replay * replay) {
    for (int i = 0; i < replay->n_made; i++) {
        replay->api->graph_free(replay->graphs[i]);
    }
    free(replay->graphs);
    replay->graphs = NULL;
    replay->n_graphs = replay->max_graphs = replay->n_made = 0;
}

void pg_replay_free(pg_replay * replay) {
    if (replay) {
        drop_graphs(replay);
        free(replay);
    }
}

enum pg_replay_state pg_replay_state_of(const pg_replay * replay, const char ** why) {
    *why = replay && replay->state == PG_REPLAY_REFUSED ? replay->why : "";
    return replay ? replay->state : PG_REPLAY_OFF;
}

void pg_replay_refuse(pg_replay * replay, const char * why) {
    if (why != replay->why) {
        strncpy(replay->why, why, sizeof(replay->why) - 1);
    }
    replay->state = PG_REPLAY_REFUSED;
    drop_graphs(replay);
}

void pg_replay_forget(pg_replay * replay) {
    replay->n_runs = replay->n_runs > 1 ? 1 : replay->n_runs;
    if (replay->state == PG_REPLAY_RECORDED) {
        replay->state = PG_REPLAY_WAITING;
        replay->n_graphs = 0;
    }
}

bool pg_replay_is_due(pg_replay * replay) {
    return replay->n_runs < 2 && ++replay->n_runs == 2;
}

static bool make_room(pg_replay * replay) {
    if (replay->n_graphs < replay->max_graphs) {
        return true;
    }
    const int max_graphs = replay->max_graphs ? 2 * replay->max_graphs : 4;
    pgc_graph ** graphs = realloc(replay->graphs, max_graphs * sizeof(pgc_graph *));
    if (!graphs) {
        return false;
    }
    replay->graphs = graphs;
    replay->max_graphs = max_graphs;
    return true;
}

// The place of the next stretch, with what an earlier recording left there or NULL.
static pgc_graph ** next_place(pg_replay * replay) {
    if (replay->n_graphs == replay->n_made) {
        replay->graphs[replay->n_made++] = NULL;
    }
    return &replay->graphs[replay->n_graphs];
}

bool pg_replay_record(pg_replay * replay, pg_walk walk, pg_plan * plan, int first, int last, bool streams_weights) {
    if (replay->state == PG_REPLAY_REFUSED) {
        return false;
    }
    if (!make_room(replay)) {
        pg_replay_refuse(replay, "no host memory for a recorded graph");
        return false;
    }
    if (!replay->api->capture_begin(replay->backend, streams_weights, replay->why, sizeof(replay->why))) {
        pg_replay_refuse(replay, replay->why);
        return false;
    }
    const int status = walk(plan, first, last);
    pgc_graph ** place = next_place(replay);
    *place = replay->api->capture_end(replay->backend, *place, replay->why, sizeof(replay->why));
    if (status != GGML_STATUS_SUCCESS || !*place) {
        pg_replay_refuse(replay, *place ? "a step failed while it was recorded" : replay->why);
        return false;
    }
    replay->n_graphs++;
    replay->state = PG_REPLAY_RECORDED;
    return true;
}

int pg_replay_launch(pg_replay * replay, int stretch) {
    if (!replay->api->graph_launch(replay->graphs[stretch], replay->why, sizeof(replay->why))) {
        GGML_LOG_ERROR("a recorded graph cannot be launched: %s\n", replay->why);
        return GGML_STATUS_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}
