/* pyggml/native: transports of groups, and the table of the separate CUDA module. */
typedef struct {
    const char *name;
    void *self;
    int (*all_reduce)(void *self, int rank, ggml_backend_t backend, struct ggml_tensor *tensor);
    int (*poll)(void *self, int rank, ggml_backend_t backend, double deadline_s);
    void (*abort)(void *self);
    void (*free)(void *self);
    bool can_capture;
    bool can_add;
} pg_transport;
typedef struct {
    void *self;
    bool (*can_move)(void *self, int from, int to);
    bool (*put)(void *self, int from, int to, int box, const struct ggml_tensor *tensor, char *why, size_t why_size);
    bool (*take)(void *self, int from, int to, int box, struct ggml_tensor *tensor, char *why, size_t why_size);
    void (*free)(void *self);
} pg_mover;
void pg_group_set_mover(pg_group *group, const pg_mover *mover);
void pg_group_add_transport(pg_group *group, const pg_transport *transport, int64_t min_elements, int64_t max_elements);
void pg_group_clear_transports(pg_group *group);

typedef struct { const struct ggml_tensor *normed; ...; } pg_fused_products;
typedef struct { const struct ggml_tensor *attention; ...; } pg_fused_heads;
typedef struct { int n_nodes; bool has_heads; bool is_experts; bool is_before_ours; bool is_behind_ours; bool is_before_sum; pg_fused_products products; pg_fused_heads heads; ...; } pg_fused;
int pg_fuse_match(const struct ggml_cgraph *graph, int first, int stop, bool may_attend, pg_fused *out);
bool pg_fuse_attends(const pg_fused *fused);
typedef struct { int first, stop; bool is_fused; pg_fused fused; struct ggml_tensor *total; const struct ggml_tensor *addend; ...; } pg_piece;
typedef struct { struct ggml_cgraph *graph; pg_piece *items; int n, max; bool may_attend; } pg_pieces;
bool pg_pieces_add(pg_pieces *pieces, int first, int stop, const struct ggml_tensor *sum, bool is_before_ours);
void pg_pieces_free(pg_pieces *pieces);

#define PGC_ABI ...
#define PGC_CHOOSE_K ...
#define PGC_CHOOSE_INTS ...
enum pgc_peer { PGC_PEER_ENABLED, PGC_PEER_ABSENT, PGC_PEER_TOO_MANY, PGC_PEER_FAILED };
typedef struct pgc_graph pgc_graph;
typedef struct {
    int abi;
    int (*find_card)(const char *bus_id, char *uuid, char *why, size_t why_size);
    bool (*card_facts)(int card, char *bus_id, size_t bus_id_size, size_t *memory_bytes, char *why, size_t why_size);
    int (*enable_peer)(int card, int peer, char *why, size_t why_size);
    void (*disable_peer)(int card, int peer);
    bool (*copy)(int from, int to, bool by_kernel, const void *sent, void *received, size_t size, double deadline_s, char *why, size_t why_size);
    pg_transport *(*push_new)(int n_ranks, const ggml_backend_t *backends, bool through_host, double deadline_s, char *why, size_t why_size);
    pg_transport *(*nccl_new)(const char *library, const char *name, int n_ranks, const ggml_backend_t *backends, double deadline_s, char *why, size_t why_size);
    pg_mover *(*mover_new)(int n_ranks, const ggml_backend_t *backends, const bool *may_copy, char *why, size_t why_size);
    bool (*check)(pg_transport *transport, int n_ranks, const ggml_backend_t *backends, int64_t n_elements, int offset_elements, int type, bool is_ordered, double deadline_s, char *why, size_t why_size);
    bool (*time)(pg_transport *transport, int n_ranks, const ggml_backend_t *backends, int64_t n_elements, int n_repeats, bool is_captured, double deadline_s, double *seconds, char *why, size_t why_size);
    bool (*nccl_trial)(const char *library, int n_cards, const int *cards, double deadline_s, char *why, size_t why_size);
    int64_t (*choose_ints)(int64_t n_rows, int64_t n_vocab);
    bool (*choose)(ggml_backend_t backend, const struct ggml_tensor *logits, struct ggml_tensor *found, char *why, size_t why_size);
    bool (*fill_mask)(ggml_backend_t backend, struct ggml_tensor *mask, const struct ggml_tensor *positions, int window, char *why, size_t why_size);
    bool (*can_capture)(ggml_backend_t backend, const struct ggml_cgraph *graph, char *why, size_t why_size);
    bool (*capture_begin)(ggml_backend_t backend, bool streams_weights, char *why, size_t why_size);
    pgc_graph *(*capture_end)(ggml_backend_t backend, pgc_graph *earlier, char *why, size_t why_size);
    bool (*graph_launch)(pgc_graph *graph, char *why, size_t why_size);
    void (*graph_free)(pgc_graph *graph);
    bool (*can_fuse)(ggml_backend_t backend);
    bool (*can_attend)(ggml_backend_t backend);
    bool (*fuse_launch)(const pg_fused *fused, ggml_backend_t backend, char *why, size_t why_size);
    void (*sum_with)(const struct ggml_tensor *addend, struct ggml_tensor *out, bool is_before_ours);
    pgc_mark *(*mark_new)(ggml_backend_t backend, char *why, size_t why_size);
    bool (*mark_set)(pgc_mark *mark, char *why, size_t why_size);
    bool (*mark_wait)(pgc_mark *mark, char *why, size_t why_size);
    void (*mark_free)(pgc_mark *mark);
    void (*poll_until)(const pgc_mark *mark);
    void (*pairs_of)(const struct ggml_tensor *found, int64_t n_rows, int n_ranks, struct ggml_tensor *pairs);
    bool (*offer)(ggml_backend_t backend, const struct ggml_tensor *found, int64_t first_id, int rank, int n_ranks, const struct ggml_tensor *pairs, char *why, size_t why_size);
    bool (*feed)(ggml_backend_t backend, const struct ggml_tensor *pairs, int n_ranks, struct ggml_tensor *tokens, char *why, size_t why_size);
    pgc_side *(*side_new)(ggml_backend_t backend, char *why, size_t why_size);
    void (*side_free)(pgc_side *side);
    bool (*side_begin)(pgc_side *side, char *why, size_t why_size);
    bool (*side_end)(pgc_side *side, int lane, char *why, size_t why_size);
    bool (*side_join)(pgc_side *side, int lane, char *why, size_t why_size);
} pgc_api;
