// A plan: one graph of one rank on one backend, cut into segments where the rank takes part in a
// collective. Python builds the graph; this file optimises each segment, lays the graph out and walks
// it, so that a step costs Python one call. ggml's own scheduler is not used:
// what it does between graph and allocation (the backend's graph_optimize and the allocation
// dependencies that come out of it) is done here.
// Threads: a plan belongs to the thread that runs its backend. Memory: tensors live in the
// allocator's buffer, which the caller owns.

#include "plan.h"

#include "fuse_parts.h"
#include "interrupt.h"
#include "pieces.h"
#include "replay.h"
#include "support.h"
#include "walk.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// `tensor` must stay allocated until `until` has been computed.
typedef struct {
    struct ggml_tensor * tensor;
    struct ggml_tensor * until;
} alloc_dep;

struct pg_plan {
    ggml_backend_t backend;
    struct ggml_cgraph * graph;
    struct ggml_context * dep_ctx;       // holds the dependency nodes and the layout graph
    struct ggml_cgraph * layout_graph;   // the graph's nodes with dependency nodes in between
    alloc_dep * deps;
    int n_deps, max_deps;
    bool has_no_memory;                  // for a dependency: the plan would be wrong without it
    struct ggml_cgraph * segments;       // n_steps + 1 views of the graph; some may be empty
    pg_step * steps;
    int n_steps;
    pg_group * group;
    int rank;
    const pgc_api * api;                 // of a plan on a card
    bool may_fuse;                       // pieces are still to be made
    pg_pieces pieces;                    // of all segments, where some nodes are computed as one
    int * first_piece;                   // n_steps + 2; NULL: ggml computes all nodes
    pg_replay * replay;                  // NULL: every run launches node by node
};

static void keep_until(void * user_data, struct ggml_tensor * tensor, struct ggml_tensor * until) {
    pg_plan * plan = user_data;
    for (int i = 0; i < plan->n_deps; i++) {
        if (plan->deps[i].tensor == tensor && plan->deps[i].until == until) {
            return;
        }
    }
    if (plan->n_deps == plan->max_deps) {
        const int max_deps = plan->max_deps ? 2 * plan->max_deps : 64;
        alloc_dep * deps = realloc(plan->deps, max_deps * sizeof(alloc_dep));
        if (!deps) {
            plan->has_no_memory = true;
            return;
        }
        plan->deps = deps;
        plan->max_deps = max_deps;
    }
    plan->deps[plan->n_deps++] = (alloc_dep) { tensor, until };
}

// Adds a node without work that reads up to GGML_MAX_SRC kept tensors after `until`: the allocator
// then cannot reuse their memory earlier.
static void append_deps(pg_plan * plan, struct ggml_cgraph * layout, struct ggml_tensor * until) {
    struct ggml_tensor * node = NULL;
    int n_src = GGML_MAX_SRC;
    for (int i = 0; i < plan->n_deps; i++) {
        if (plan->deps[i].until != until) {
            continue;
        }
        if (n_src == GGML_MAX_SRC) {
            node = ggml_new_tensor_1d(plan->dep_ctx, GGML_TYPE_F32, 1);
            layout->nodes[layout->n_nodes++] = node;
            n_src = 0;
        }
        node->src[n_src++] = plan->deps[i].tensor;
    }
}

static void build_layout_graph(pg_plan * plan) {
    if (plan->n_deps == 0) {
        plan->layout_graph = plan->graph;
        return;
    }
    const int n_leafs = plan->graph->n_leafs;
    const int size = plan->graph->n_nodes + plan->n_deps + n_leafs;
    struct ggml_init_params params = {
        .mem_size = plan->n_deps * ggml_tensor_overhead() + ggml_graph_overhead_custom(size, false) + 1024,
        .no_alloc = true,
    };
    plan->dep_ctx = ggml_init(params);
    struct ggml_cgraph * layout = ggml_new_graph_custom(plan->dep_ctx, size, false);
    for (int i = 0; i < plan->graph->n_nodes; i++) {
        layout->nodes[layout->n_nodes++] = plan->graph->nodes[i];
        append_deps(plan, layout, plan->graph->nodes[i]);
    }
    memcpy(layout->leafs, plan->graph->leafs, n_leafs * sizeof(struct ggml_tensor *));
    layout->n_leafs = n_leafs;
    plan->layout_graph = layout;
}

// The backend may reorder nodes, but only inside a segment.
static void cut_segments(pg_plan * plan) {
    plan->segments = calloc(plan->n_steps + 1, sizeof(struct ggml_cgraph));
    int start = 0;
    for (int i = 0; i <= plan->n_steps; i++) {
        const int stop = i < plan->n_steps ? plan->steps[i].end_node : plan->graph->n_nodes;
        plan->segments[i] = ggml_graph_view(plan->graph, start, stop);
        if (plan->backend->iface.graph_optimize && stop > start) {
            struct ggml_backend_graph_optimize_params params = { keep_until, plan };
            plan->backend->iface.graph_optimize(plan->backend, &plan->segments[i], &params);
        }
        start = stop;
    }
}

pg_plan * pg_plan_new(ggml_backend_t backend, struct ggml_cgraph * graph, const pg_step * steps, int n_steps,
                      int * unsupported_node) {
    ggml_backend_dev_t device = ggml_backend_get_device(backend);
    *unsupported_node = -1;
    for (int i = 0; i < graph->n_nodes; i++) {
        if (!pg_supports(device, graph->nodes[i])) {
            *unsupported_node = i;
            return NULL;
        }
    }
    pg_plan * plan = calloc(1, sizeof(pg_plan));
    plan->backend = backend;
    plan->graph = graph;
    plan->n_steps = n_steps;
    plan->steps = malloc((n_steps + 1) * sizeof(pg_step));
    memcpy(plan->steps, steps, n_steps * sizeof(pg_step));
    cut_segments(plan);
    if (plan->has_no_memory) {
        pg_plan_free(plan);
        return NULL;
    }
    build_layout_graph(plan);
    return plan;
}

void pg_plan_free(pg_plan * plan) {
    if (plan) {
        pg_replay_free(plan->replay);
        pg_pieces_free(&plan->pieces);
        free(plan->first_piece);
        ggml_free(plan->dep_ctx);
        free(plan->deps);
        free(plan->segments);
        free(plan->steps);
        free(plan);
    }
}

int pg_plan_n_nodes(const pg_plan * plan) {
    return plan->graph->n_nodes;
}

bool pg_plan_reserve(pg_plan * plan, ggml_gallocr_t galloc) {
    return ggml_gallocr_reserve(galloc, plan->layout_graph);
}

bool pg_plan_layout(pg_plan * plan, ggml_gallocr_t galloc) {
    return ggml_gallocr_alloc_graph(galloc, plan->layout_graph);
}

void pg_plan_join(pg_plan * plan, pg_group * group, int rank) {
    plan->group = group;
    plan->rank = rank;
}

int pg_plan_compute(pg_plan * plan, int i, bool is_begun) {
    struct ggml_cgraph * segment = &plan->segments[i];
    if (segment->n_nodes == 0) {
        return GGML_STATUS_SUCCESS;
    }
    const bool is_serial = plan->group && pg_group_is_serial(plan->group);
    if (is_serial) {
        pg_group_lock(plan->group, true);
    }
    const int status = plan->first_piece ?
        pg_pieces_launch(&plan->pieces, plan->first_piece[i] + is_begun, plan->first_piece[i + 1], plan->api, plan->backend) :
        (int) ggml_backend_graph_compute_async(plan->backend, segment);
    if (is_serial) {
        ggml_backend_synchronize(plan->backend);
        pg_group_lock(plan->group, false);
    }
    return status;
}

static int64_t row_at(const pg_transfer * t, int64_t i) {
    return t->tensor->type == GGML_TYPE_I64 ? ((const int64_t *) t->data)[i] : ((const int32_t *) t->data)[i];
}

static bool is_bad_row(const pg_transfer * t, int64_t * value) {
    if (t->n_rows <= 0) {
        return false;
    }
    const int64_t n = t->size / ggml_type_size(t->tensor->type);
    for (int64_t i = 0; i < n; i++) {
        *value = row_at(t, i);
        if (*value < 0 || *value >= t->n_rows) {
            return true;
        }
        for (int64_t k = t->n_distinct > 1 ? i - i % t->n_distinct : i; k < i; k++) {
            if (row_at(t, k) == *value) {
                return true;
            }
        }
    }
    return false;
}

int pg_first_bad_row(const pg_transfer * transfers, int n, int64_t * value) {
    for (int i = 0; i < n; i++) {
        if (is_bad_row(&transfers[i], value)) {
            return i;
        }
    }
    return -1;
}

// A step of the CUDA module that concerns no other rank.
static bool is_own_step(const pg_step * step) {
    return step->op == PG_CHOOSE || step->op == PG_MASK;
}

// What follows sum i and can be computed by it, or NULL.
static const pg_piece * addition_of(const pg_plan * plan, int i) {
    const int * first = plan->first_piece;
    const pg_piece * piece = first && first[i + 1] < first[i + 2] ? &plan->pieces.items[first[i + 1]] : NULL;
    return piece && piece->total && pg_group_can_add(plan->group, plan->steps[i].tensor) ? piece : NULL;
}

// Whether a piece is there, in its segment, and a launch of ours.
static bool is_ours(const pg_plan * plan, int piece, int segment) {
    return piece < plan->first_piece[segment + 1] && plan->pieces.items[piece].is_fused;
}

static int take_sum(pg_plan * plan, int i, bool * begins_next) {
    const pg_piece * addition = addition_of(plan, i);
    const pg_step * s = &plan->steps[i];
    if (plan->first_piece) {
        plan->api->sum_with(addition ? addition->addend : NULL, addition ? addition->total : NULL,
                            is_ours(plan, plan->first_piece[i + 1] + (addition != NULL), i + 1));
    }
    const int fault = pg_group_step(plan->group, plan->rank, plan->backend, PG_ALL_REDUCE, s->tensor, NULL, 0);
    if (plan->first_piece) {
        plan->api->sum_with(NULL, NULL, false);  // another transport, or a group that has failed, did not take it
    }
    *begins_next = addition != NULL;
    return fault;
}

int pg_plan_take_step(pg_plan * plan, int i, bool * begins_next) {
    const pg_step * s = &plan->steps[i];
    if (is_own_step(s)) {
        char why[200];
        const bool is_done = s->op == PG_CHOOSE ?
            plan->api->choose(plan->backend, s->tensor, s->other, why, sizeof(why)) :
            plan->api->fill_mask(plan->backend, s->tensor, s->other, s->peer, why, sizeof(why));
        if (!is_done) {
            GGML_LOG_ERROR("%s\n", why);
        }
        return is_done ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
    }
    const int fault = s->op == PG_ALL_REDUCE ?
        take_sum(plan, i, begins_next) :
        pg_group_step(plan->group, plan->rank, plan->backend, (enum pg_op) s->op, s->tensor, s->other, s->peer);
    if (!fault && pg_group_is_serial(plan->group)) {
        ggml_backend_synchronize(plan->backend);  // a sum that waits for its peers must not hold up their computing
    }
    return fault ? 100 + fault : GGML_STATUS_SUCCESS;
}

// The segments `first` to `last` and the steps between them.
static int walk(pg_plan * plan, int first, int last) {
    bool is_begun = false;
    for (int i = first; i <= last; i++) {
        int status = pg_plan_compute(plan, i, is_begun);
        is_begun = false;
        if (status == GGML_STATUS_SUCCESS && i < last) {
            status = pg_plan_take_step(plan, i, &is_begun);
        }
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// The last segment of the stretch that begins with segment `first`: what follows it needs the host.
static int end_of_stretch(const pg_plan * plan, int first) {
    for (int i = first; i < plan->n_steps; i++) {
        const pg_step * s = &plan->steps[i];
        if (!is_own_step(s) && !pg_group_can_capture(plan->group, (enum pg_op) s->op, s->tensor)) {
            return i;
        }
    }
    return plan->n_steps;
}

static bool has_nodes(const pg_plan * plan, int first, int last) {
    for (int i = first; i <= last; i++) {
        if (plan->segments[i].n_nodes > 0) {
            return true;
        }
    }
    return first < last;
}

// Recording runs nothing, so its sums are not to be counted. Ranks meet before any of them launches what it has
// recorded: making a graph can wait for a card, and a card may wait for a rank that has not come.
static int record(pg_plan * plan) {
    const int64_t n_reduces = plan->group ? pg_group_n_reduces(plan->group, plan->rank) : 0;
    const bool streams_weights = plan->first_piece && pg_pieces_stream_weights(&plan->pieces);
    for (int first = 0, last; first <= plan->n_steps; first = last + 1) {
        last = end_of_stretch(plan, first);
        if (has_nodes(plan, first, last) && !pg_replay_record(plan->replay, walk, plan, first, last, streams_weights)) {
            break;
        }
    }
    if (!plan->group) {
        return GGML_STATUS_SUCCESS;
    }
    pg_group_count_reduces(plan->group, plan->rank, n_reduces - pg_group_n_reduces(plan->group, plan->rank));
    const int fault = pg_group_meet(plan->group, plan->rank, "recording");
    return fault ? 100 + fault : GGML_STATUS_SUCCESS;
}

static int n_sums(const pg_plan * plan, int first, int last) {
    int n = 0;
    for (int i = first; i < last; i++) {
        n += plan->steps[i].op == PG_ALL_REDUCE;
    }
    return n;
}

static int replay_steps(pg_plan * plan) {
    int stretch = 0;
    for (int first = 0, last; first <= plan->n_steps; first = last + 1) {
        last = end_of_stretch(plan, first);
        int status = has_nodes(plan, first, last) ? pg_replay_launch(plan->replay, stretch++) : GGML_STATUS_SUCCESS;
        if (plan->group) {
            pg_group_count_reduces(plan->group, plan->rank, n_sums(plan, first, last));
        }
        if (status == GGML_STATUS_SUCCESS && last < plan->n_steps) {
            bool begins_next = false;  // it never does: sums that can add are recorded, and this one is not
            status = pg_plan_take_step(plan, last, &begins_next);
        }
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    return GGML_STATUS_SUCCESS;
}

// What the sum before segment i sums if it can also add, or NULL.
static const struct ggml_tensor * sum_before(const pg_plan * plan, int i) {
    const pg_step * s = i > 0 && i <= plan->n_steps && plan->group ? &plan->steps[i - 1] : NULL;
    return s && s->op == PG_ALL_REDUCE && pg_group_can_add(plan->group, s->tensor) ? s->tensor : NULL;
}

// Beside sums over ranks it was not measured: what waits on a card and has no room decides how fast the rest is.
static bool may_attend(const pg_plan * plan) {
    const char * part = n_sums(plan, 0, plan->n_steps) > 0 ? "attention-ranks" : "attention";
    return pg_fuse_takes(part) && plan->api->can_attend(plan->backend);
}

bool pg_plan_make_pieces(pg_plan * plan) {
    if (!plan->may_fuse) {
        return true;
    }
    plan->may_fuse = false;
    plan->first_piece = malloc((plan->n_steps + 2) * sizeof(int));
    plan->pieces.graph = plan->graph;
    plan->pieces.may_attend = may_attend(plan);
    bool is_made = plan->first_piece != NULL;
    int start = 0;
    for (int i = 0; i <= plan->n_steps && is_made; i++) {
        const int stop = start + plan->segments[i].n_nodes;
        plan->first_piece[i] = plan->pieces.n;
        is_made = pg_pieces_add(&plan->pieces, start, stop, sum_before(plan, i), sum_before(plan, i + 1) != NULL);
        plan->first_piece[i + 1] = plan->pieces.n;
        start = stop;
    }
    if (!is_made || pg_pieces_n_fused(&plan->pieces) == 0) {
        free(plan->first_piece);
        plan->first_piece = NULL;
    }
    return is_made;
}

static int run_steps(pg_plan * plan) {
    const char * why;
    if (!pg_plan_make_pieces(plan)) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (plan->replay && pg_replay_is_due(plan->replay)) {
        const int status = record(plan);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    return pg_replay_state_of(plan->replay, &why) == PG_REPLAY_RECORDED ? replay_steps(plan) : walk(plan, 0, plan->n_steps);
}

void pg_plan_use(pg_plan * plan, const void * api, bool may_fuse) {
    plan->api = api;
    plan->may_fuse = may_fuse && plan->api->can_fuse(plan->backend);
}

int pg_plan_n_fused(pg_plan * plan) {
    return pg_plan_make_pieces(plan) ? pg_pieces_n_fused(&plan->pieces) : -1;
}

bool pg_plan_replay(pg_plan * plan) {
    plan->replay = pg_replay_new(plan->api, plan->backend);
    if (!plan->replay) {
        return false;
    }
    char why[200];
    if (!plan->api->can_capture(plan->backend, plan->graph, why, sizeof(why))) {
        pg_replay_refuse(plan->replay, why);
    }
    return true;
}

void pg_plan_changed(pg_plan * plan) {
    if (plan->replay) {
        pg_replay_forget(plan->replay);
    }
}

enum pg_replay_state pg_plan_replay_state(const pg_plan * plan, char * why, size_t why_size) {
    const char * text;
    const enum pg_replay_state state = pg_replay_state_of(plan->replay, &text);
    snprintf(why, why_size, "%s", text);
    return state;
}

int pg_plan_send(pg_plan * plan, const pg_transfer * inputs, int n_inputs) {
    int64_t value;
    if (pg_first_bad_row(inputs, n_inputs, &value) >= 0) {
        return PG_STATUS_BAD_ROW;
    }
    for (int i = 0; i < n_inputs; i++) {
        ggml_backend_tensor_set_async(plan->backend, inputs[i].tensor, inputs[i].data, inputs[i].offset, inputs[i].size);
    }
    return GGML_STATUS_SUCCESS;
}

int pg_plan_start(pg_plan * plan, const pg_transfer * inputs, int n_inputs) {
    const int status = pg_plan_send(plan, inputs, n_inputs);
    return status == GGML_STATUS_SUCCESS ? run_steps(plan) : status;
}

int pg_plan_start_interruptible(pg_plan * plan, const pg_transfer * inputs, int n_inputs) {
    pg_interrupt_begin(plan->backend);
    const int status = pg_plan_start(plan, inputs, n_inputs);
    pg_interrupt_end(plan->backend);
    return status;
}

void pg_plan_read(pg_plan * plan, const pg_transfer * outputs, int n_outputs) {
    for (int i = 0; i < n_outputs; i++) {
        ggml_backend_tensor_get_async(plan->backend, outputs[i].tensor, outputs[i].data, outputs[i].offset, outputs[i].size);
    }
    ggml_backend_synchronize(plan->backend);
}

int pg_plan_run(pg_plan * plan, const pg_transfer * inputs, int n_inputs, const pg_transfer * outputs, int n_outputs) {
    const int status = pg_plan_start(plan, inputs, n_inputs);
    if (status == GGML_STATUS_SUCCESS) {
        pg_plan_read(plan, outputs, n_outputs);
    }
    return status;
}

pg_seat pg_plan_seat(const pg_plan * plan) {
    pg_seat seat = { plan->backend, plan->group, plan->rank, plan->api, plan->steps, plan->n_steps, NULL };
    for (int i = 0; i < plan->n_steps; i++) {
        if (plan->steps[i].op == PG_CHOOSE) {
            seat.choice = &plan->steps[i];
        }
    }
    return seat;
}
