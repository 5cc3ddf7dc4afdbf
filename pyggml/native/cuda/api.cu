// The module's one exported symbol: its table of functions.

#include "capturable.h"
#include "choose.h"
#include "fused.h"
#include "graph.h"
#include "mail.h"
#include "mark.h"
#include "mask.h"
#include "nccl.h"
#include "peer.h"
#include "proof.h"
#include "push.h"
#include "relay.h"
#include "side.h"
#include "workspace.h"

static bool check(pg_transport * transport, int n_ranks, const ggml_backend_t * backends, int64_t n_elements, int offset_elements,
                  int type, bool is_ordered, double deadline_s, char * text, size_t text_size) {
    const reason why = {text, text_size};
    place places[MAX_PLACES];
    return find_places(n_ranks, backends, places, why) &&
           check_sums(transport, n_ranks, places, {n_elements, offset_elements, static_cast<ggml_type>(type), is_ordered, deadline_s}, why);
}

static bool time_transport(pg_transport * transport, int n_ranks, const ggml_backend_t * backends, int64_t n_elements, int n_repeats,
                           bool is_captured, double deadline_s, double * seconds, char * text, size_t text_size) {
    const reason why = {text, text_size};
    place places[MAX_PLACES];
    return find_places(n_ranks, backends, places, why) &&
           time_sums(transport, n_ranks, places, {n_elements, 0, GGML_TYPE_F32, false, deadline_s}, n_repeats, is_captured, seconds, why);
}

static bool capture_begin(ggml_backend_t backend, bool streams_weights, char * text, size_t text_size) {
    const reason why = {text, text_size};
    place where;
    return find_place(backend, where, why) && begin_capture(where, streams_weights, why);
}

static pgc_graph * capture_end(ggml_backend_t backend, pgc_graph * earlier, char * text, size_t text_size) {
    const reason why = {text, text_size};
    place where;
    if (!find_place(backend, where, why)) {
        free_graph(earlier);
        return nullptr;
    }
    return end_capture(where, earlier, why);
}

static bool graph_launch(pgc_graph * graph, char * text, size_t text_size) {
    return launch_graph(graph, {text, text_size});
}

// Plans ask for it as they are made, which is when the room that runs usually need is found too.
static bool can_fuse_on(ggml_backend_t backend) {
    char text[200];
    const reason why = {text, sizeof(text)};
    place where;
    return find_place(backend, where, why) && can_fuse(where) && prepare_workspace(where, why);
}

static bool can_attend_on(ggml_backend_t backend) {
    char text[200];
    place where;
    return find_place(backend, where, {text, sizeof(text)}) && can_attend(where);
}

static bool fuse_launch(const pg_fused * fused, ggml_backend_t backend, char * text, size_t text_size) {
    const reason why = {text, text_size};
    place where;
    return find_place(backend, where, why) && launch_fused(*fused, where, why);
}

extern "C" __attribute__((visibility("default"))) const pgc_api * pgc_open(void) {
    static const pgc_api api = {
        PGC_ABI,    find_card,  card_facts, enable_peer,   disable_peer, copy_between, push_new,     nccl_new, mover_new, check,
        time_transport, nccl_trial, choose_ints, choose, fill_mask, can_capture, capture_begin, capture_end,  graph_launch, free_graph,
        can_fuse_on, can_attend_on, fuse_launch, push_with, mark_new, mark_set, mark_wait, mark_free, poll_until, pairs_of, offer_likeliest, feed_likeliest,
        side_new, side_free, side_begin, side_end, side_join,
    };
    return &api;
}
