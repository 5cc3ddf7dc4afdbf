#include "turns.h"

#include "cuda_api.h"
#include "walk.h"

#include "ggml-impl.h"

// A plan that is walked in turns with another.
typedef struct {
    pg_plan * plan;
    pg_seat seat;
    pgc_side * side;
    int lane;
    int next;          // segment
    bool is_begun;     // the sum before it has computed its first piece
    bool is_summing;   // the sum before it may still be under way
    bool is_done;
} turn;

static int sum_beside(turn * t) {
    const pgc_api * api = t->seat.api;
    char why[200];
    if (!api->side_begin(t->side, why, sizeof(why))) {
        GGML_LOG_ERROR("%s\n", why);
        return GGML_STATUS_FAILED;
    }
    const int status = pg_plan_take_step(t->plan, t->next, &t->is_begun);
    t->is_summing = api->side_end(t->side, t->lane, why, sizeof(why));
    if (status == GGML_STATUS_SUCCESS && !t->is_summing) {
        GGML_LOG_ERROR("%s\n", why);
        return GGML_STATUS_FAILED;
    }
    return status;
}

static bool join(turn * t) {
    char why[200];
    if (t->is_summing && !((const pgc_api *) t->seat.api)->side_join(t->side, t->lane, why, sizeof(why))) {
        GGML_LOG_ERROR("%s\n", why);
        return false;
    }
    t->is_summing = false;
    return true;
}

// Computes on until a sum has begun, or to the end.
static int take_turn(turn * t) {
    pg_plan * plan = t->plan;
    if (!join(t)) {
        return GGML_STATUS_FAILED;
    }
    while (true) {
        int status = pg_plan_compute(plan, t->next, t->is_begun);
        t->is_begun = false;
        if (status != GGML_STATUS_SUCCESS || t->next == t->seat.n_steps) {
            t->is_done = true;
            return status;
        }
        const pg_step * s = &t->seat.steps[t->next];
        const bool is_sum = s->op == PG_ALL_REDUCE;
        const bool goes_beside = is_sum && t->side && !pg_group_is_serial(t->seat.group) &&
                                 pg_group_can_capture(t->seat.group, PG_ALL_REDUCE, s->tensor);
        status = goes_beside ? sum_beside(t) : pg_plan_take_step(plan, t->next, &t->is_begun);
        t->next++;
        if (status != GGML_STATUS_SUCCESS || is_sum) {
            return status;
        }
    }
}

int pg_turns_start(pg_plan * first, pg_plan * second, pgc_side * side) {
    turn turns[2] = { { .plan = first, .seat = pg_plan_seat(first), .side = side, .lane = 0 },
                      { .plan = second, .seat = pg_plan_seat(second), .side = side, .lane = 1 } };
    if (!pg_plan_make_pieces(first) || !pg_plan_make_pieces(second)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    int status = GGML_STATUS_SUCCESS;
    for (int i = 0; status == GGML_STATUS_SUCCESS && !(turns[0].is_done && turns[1].is_done); i = 1 - i) {
        status = turns[i].is_done ? GGML_STATUS_SUCCESS : take_turn(&turns[i]);
    }
    // Who waits for the backend's stream must not find it empty while a sum is still under way.
    return join(&turns[0]) & join(&turns[1]) ? status : GGML_STATUS_FAILED;
}
