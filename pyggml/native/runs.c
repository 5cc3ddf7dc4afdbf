#include "runs.h"

#include "cuda_api.h"
#include "turns.h"

#include "ggml-impl.h"

static int n_ranks_of(const pg_seat * seat) {
    return seat->group ? pg_group_n_ranks(seat->group) : 1;
}

// A run of a rank that cannot go on would leave the others waiting.
static void tell_group(const pg_run * run) {
    if (run->status != GGML_STATUS_SUCCESS && run->status < 100) {
        const pg_seat seat = pg_plan_seat(run->plan);
        pg_group_fail(seat.group, PG_FAULT_COMPUTE, seat.rank, ggml_status_to_string((enum ggml_status) run->status));
    }
}

static int start_turns(const pg_run * run) {
    const pg_run * second = run->second;
    int status = pg_plan_send(run->plan, run->inputs, run->n_inputs);
    if (status == GGML_STATUS_SUCCESS) {
        status = pg_plan_send(second->plan, second->inputs, second->n_inputs);
    }
    return status == GGML_STATUS_SUCCESS ? pg_turns_start(run->plan, second->plan, run->side) : status;
}

static void run_part(void * argument) {
    pg_run * run = argument;
    const pg_seat seat = pg_plan_seat(run->plan);
    run->status = run->second ? start_turns(run) : pg_plan_start(run->plan, run->inputs, run->n_inputs);
    if (run->status == GGML_STATUS_SUCCESS) {
        const int fault = pg_group_finish(seat.group, seat.rank, seat.backend);
        run->status = fault ? 100 + fault : GGML_STATUS_SUCCESS;
    }
    if (run->status == GGML_STATUS_SUCCESS) {
        pg_plan_read(run->plan, run->outputs, run->n_outputs);
    }
    if (run->status == GGML_STATUS_SUCCESS && run->second) {
        pg_plan_read(run->second->plan, run->second->outputs, run->second->n_outputs);
    }
    tell_group(run);
}

static void post(pg_group * group, pg_run * runs, pg_job job) {
    for (int i = 0; i < pg_group_n_ranks(group); i++) {
        if (runs[i].plan) {
            pg_group_post(group, i, job, &runs[i]);
        }
    }
}

void pg_runs_post(pg_group * group, pg_run * runs) {
    post(group, runs, run_part);
}

void pg_runs_finish(pg_group * group, pg_run * runs) {
    pg_runs_post(group, runs);
    for (int i = 0; i < pg_group_n_ranks(group); i++) {
        if (runs[i].plan) {
            pg_group_wait(group, i, 0);
        }
    }
}

bool pg_plan_can_feed(const pg_plan * plan) {
    const pg_seat seat = pg_plan_seat(plan);
    char why[256];
    struct ggml_tensor pairs;
    if (!seat.choice || pg_plan_replay_state(plan, why, sizeof(why)) != PG_REPLAY_RECORDED) {
        return false;
    }
    ((const pgc_api *) seat.api)->pairs_of(seat.choice->other, seat.choice->tensor->ne[1], n_ranks_of(&seat), &pairs);
    return n_ranks_of(&seat) == 1 || pg_group_can_capture(seat.group, PG_ALL_REDUCE, &pairs);
}

static int failed(const char * why) {
    GGML_LOG_ERROR("%s\n", why);
    return GGML_STATUS_FAILED;
}

// Each rank knows the likeliest of its part of the vocabulary only: the parts' pairs of value and token are summed, each
// in a place of its own.
static int feed(const pg_seat * seat, struct ggml_tensor * tokens, int64_t first_id) {
    const pgc_api * api = seat->api;
    const int n_ranks = n_ranks_of(seat);
    char why[200];
    struct ggml_tensor pairs;
    api->pairs_of(seat->choice->other, tokens->ne[0], n_ranks, &pairs);
    if (!api->offer(seat->backend, seat->choice->other, first_id, seat->rank, n_ranks, &pairs, why, sizeof(why))) {
        return failed(why);
    }
    if (n_ranks > 1) {
        const int fault = pg_group_step(seat->group, seat->rank, seat->backend, PG_ALL_REDUCE, &pairs, NULL, 0);
        if (fault) {
            return 100 + fault;
        }
        pg_group_count_reduces(seat->group, seat->rank, -1);  // it is none of the model's
    }
    return api->feed(seat->backend, &pairs, n_ranks, tokens, why, sizeof(why)) ? GGML_STATUS_SUCCESS : failed(why);
}

int pg_run_begin(pg_run * run) {
    const pg_seat seat = pg_plan_seat(run->plan);
    int status = run->fed ? feed(&seat, run->fed, run->first_id) : GGML_STATUS_SUCCESS;
    if (status == GGML_STATUS_SUCCESS) {
        status = pg_plan_start(run->plan, run->inputs, run->n_inputs);
    }
    for (int i = 0; i < run->n_outputs && status == GGML_STATUS_SUCCESS; i++) {
        const pg_transfer * t = &run->outputs[i];
        ggml_backend_tensor_get_async(seat.backend, t->tensor, t->data, t->offset, t->size);
    }
    char why[200];
    if (status == GGML_STATUS_SUCCESS && !((const pgc_api *) seat.api)->mark_set(run->mark, why, sizeof(why))) {
        status = failed(why);
    }
    run->status = status;
    return status;
}

int pg_run_end(pg_run * run) {
    const pg_seat seat = pg_plan_seat(run->plan);
    const pgc_api * api = seat.api;
    char why[200];
    if (run->status == GGML_STATUS_SUCCESS && seat.group) {
        api->poll_until(run->mark);
        const int fault = pg_group_finish(seat.group, seat.rank, seat.backend);
        api->poll_until(NULL);
        run->status = fault ? 100 + fault : GGML_STATUS_SUCCESS;
    }
    if (run->status == GGML_STATUS_SUCCESS && !api->mark_wait(run->mark, why, sizeof(why))) {
        run->status = failed(why);
    }
    return run->status;
}

static void begin_part(void * argument) {
    pg_run_begin(argument);
    tell_group(argument);
}

static void end_part(void * argument) {
    pg_run_end(argument);
    tell_group(argument);
}

void pg_runs_begin(pg_group * group, pg_run * runs) {
    post(group, runs, begin_part);
}

void pg_runs_end(pg_group * group, pg_run * runs) {
    post(group, runs, end_part);
}
