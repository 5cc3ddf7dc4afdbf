// What the separate CUDA module (libpyggml-cuda.so) offers, as one table found by dlsym("pgc_open").
// Cards are CUDA's own numbers. `why` takes the reason whenever a call fails.
#pragma once

#include "fuse.h"
#include "group.h"
#include "runs.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PGC_ABI 16

// The best of a row of logits: their ids, their values as floats, then how many were found or a code, the log of the
// sum of the exponentials of the whole row as a float, and room to keep rows aligned. The codes are pg_candidates' own.
#define PGC_CHOOSE_K 64
#define PGC_CHOOSE_INTS (2 * PGC_CHOOSE_K + 4)
enum pgc_choose { PGC_CHOOSE_NAN = -1, PGC_CHOOSE_INF = -2, PGC_CHOOSE_NONE = -3 };

enum pgc_peer { PGC_PEER_ENABLED = 0, PGC_PEER_ABSENT = 1, PGC_PEER_TOO_MANY = 2, PGC_PEER_FAILED = 3 };

typedef struct pgc_graph pgc_graph;

typedef struct {
    int abi;

    // The card at a PCI address, -1 if there is none; uuid takes 33 characters.
    int (*find_card)(const char * bus_id, char * uuid, char * why, size_t why_size);

    // A card's PCI address and memory; unlike a question for free memory this opens nothing on the card.
    bool (*card_facts)(int card, char * bus_id, size_t bus_id_size, size_t * memory_bytes, char * why, size_t why_size);

    // Lets kernels and copies of `card` reach the memory of `peer`; an enum pgc_peer. One direction.
    int (*enable_peer)(int card, int peer, char * why, size_t why_size);
    void (*disable_peer)(int card, int peer);

    // Sends bytes host -> from -> to -> host; by_kernel stores to the peer's memory in place of a copy.
    bool (*copy)(int from, int to, bool by_kernel, const void * sent, void * received, size_t size, double deadline_s,
                 char * why, size_t why_size);

    // Transports; NULL on failure. pg_group_add_transport takes them over, else call transport->free.
    // Both hold on to the backends' streams. push: 2 to 8 cards, enables the peers it needs or goes
    // through_host, by memory of the host that all cards reach. nccl: its settings
    // come from the environment at the process's first use of it.
    pg_transport * (*push_new)(int n_ranks, const ggml_backend_t * backends, bool through_host,
                               double deadline_s, char * why, size_t why_size);
    pg_transport * (*nccl_new)(const char * library, const char * name, int n_ranks, const ggml_backend_t * backends,
                               double deadline_s, char * why, size_t why_size);

    // Messages between ranks on distinct cards; may_copy[from * n_ranks + to] says which pairs' copies were proven.
    pg_mover * (*mover_new)(int n_ranks, const ggml_backend_t * backends, const bool * may_copy, char * why, size_t why_size);

    // Sums known numbers on all ranks several times: right everywhere, the same bits on all ranks, and
    // with is_ordered exactly the sums taken in rank order and rounded once. `type` is a ggml_type: F32, BF16 or F16.
    // offset_elements shifts the tensor in its buffer.
    bool (*check)(pg_transport * transport, int n_ranks, const ggml_backend_t * backends, int64_t n_elements,
                  int offset_elements, int type, bool is_ordered, double deadline_s, char * why, size_t why_size);

    // Seconds a sum, the slowest rank's, over n_repeats in one captured graph or launched one by one.
    bool (*time)(pg_transport * transport, int n_ranks, const ggml_backend_t * backends, int64_t n_elements, int n_repeats,
                 bool is_captured, double deadline_s, double * seconds, char * why, size_t why_size);

    // A check over NCCL on streams of its own, for a process that may be killed.
    bool (*nccl_trial)(const char * library, int n_cards, const int * cards, double deadline_s, char * why, size_t why_size);

    // Launches the choice of the best of each row of logits (float32 [n_rows][n_vocab]) into `found`, an int32 tensor
    // of choose_ints numbers: PGC_CHOOSE_INTS a row, then room to work. choose_ints is 0 for too large a vocabulary.
    int64_t (*choose_ints)(int64_t n_rows, int64_t n_vocab);
    bool (*choose)(ggml_backend_t backend, const struct ggml_tensor * logits, struct ggml_tensor * found, char * why,
                   size_t why_size);

    // Launches the filling of a float16 mask [n_seq][1][n_tokens][n_kv]: 0 where the token at positions[i] sees row j
    // (j <= positions[i], with a window only that many), else minus infinity.
    bool (*fill_mask)(ggml_backend_t backend, struct ggml_tensor * mask, const struct ggml_tensor * positions, int window,
                      char * why, size_t why_size);

    // Whether a graph's nodes can all be recorded: none of them waits on the host.
    bool (*can_capture)(ggml_backend_t backend, const struct ggml_cgraph * graph, char * why, size_t why_size);

    // A backend's launches, recorded on the calling thread (relaxed) and replayed; streams_weights where fused products
    // of few columns take most of their time. capture_end takes over `earlier`, if any, a
    // graph of the same launches with other arguments, to make the new one of. graph_free takes NULL too.
    bool (*capture_begin)(ggml_backend_t backend, bool streams_weights, char * why, size_t why_size);
    pgc_graph * (*capture_end)(ggml_backend_t backend, pgc_graph * earlier, char * why, size_t why_size);
    bool (*graph_launch)(pgc_graph * graph, char * why, size_t why_size);
    void (*graph_free)(pgc_graph * graph);

    // Whether a backend's card has the kernels of fused runs; launches one on the backend's stream. A launch that cannot be
    // made (false) has computed nothing. After the first launch of a run it can be captured.
    bool (*can_fuse)(ggml_backend_t backend);
    bool (*can_attend)(ggml_backend_t backend);  // runs that end with attention
    bool (*fuse_launch)(const pg_fused * fused, ggml_backend_t backend, char * why, size_t why_size);

    // The next sum that the calling thread launches by a transport that can add puts the sum of all ranks plus `addend` into
    // `out` in place of its tensor; all three are F32 of one size, at multiples of 16 bytes. NULL twice: it adds nothing. With
    // is_before_ours fuse_launch follows, whose kernels then may start during the sum.
    void (*sum_with)(const struct ggml_tensor * addend, struct ggml_tensor * out, bool is_before_ours);

    // Marks: set behind what a backend's stream has to do by then, and waited for. With poll_until the polls of
    // transports by the calling thread wait for a mark only, with NULL for the whole stream again. mark_free takes NULL too.
    pgc_mark * (*mark_new)(ggml_backend_t backend, char * why, size_t why_size);
    bool (*mark_set)(pgc_mark * mark, char * why, size_t why_size);
    bool (*mark_wait)(pgc_mark * mark, char * why, size_t why_size);
    void (*mark_free)(pgc_mark * mark);
    void (*poll_until)(const pgc_mark * mark);

    // The likeliest tokens of a step on their way into the next: `pairs` is a vector in the room to work behind what
    // `choose` found, of a value and a token's number + 1 for each rank and row; offer puts this rank's there, zeros
    // where others' belong and where nothing was found, and feed takes the best of each row, of equals the lowest rank's.
    void (*pairs_of)(const struct ggml_tensor * found, int64_t n_rows, int n_ranks, struct ggml_tensor * pairs);
    bool (*offer)(ggml_backend_t backend, const struct ggml_tensor * found, int64_t first_id, int rank, int n_ranks,
                  const struct ggml_tensor * pairs, char * why, size_t why_size);
    bool (*feed)(ggml_backend_t backend, const struct ggml_tensor * pairs, int n_ranks, struct ggml_tensor * tokens, char * why,
                 size_t why_size);

    // A stream beside a backend's: sums that the calling thread launches between begin and end go there, behind what the
    // backend had to do at begin; join has the backend's stream wait for the one that ended last in that lane (0 or 1).
    pgc_side * (*side_new)(ggml_backend_t backend, char * why, size_t why_size);
    void (*side_free)(pgc_side * side);
    bool (*side_begin)(pgc_side * side, char * why, size_t why_size);
    bool (*side_end)(pgc_side * side, int lane, char * why, size_t why_size);
    bool (*side_join)(pgc_side * side, int lane, char * why, size_t why_size);
} pgc_api;

#ifdef __cplusplus
}
#endif
