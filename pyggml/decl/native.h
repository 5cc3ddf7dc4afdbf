/* pyggml/native: one graph laid out and run on one backend. */
typedef struct pg_plan pg_plan;
typedef struct { struct ggml_tensor *tensor; void *data; size_t offset; size_t size; int64_t n_rows; int64_t n_distinct; } pg_transfer;
#define PG_STATUS_BAD_ROW ...

typedef struct pg_group pg_group;
typedef struct { int end_node; int op; struct ggml_tensor *tensor; struct ggml_tensor *other; int peer; } pg_step;
typedef struct pgc_mark pgc_mark;
typedef struct pgc_side pgc_side;
typedef struct pg_run { pg_plan *plan; const pg_transfer *inputs; const pg_transfer *outputs; int n_inputs, n_outputs; int status; struct ggml_tensor *fed; int64_t first_id; pgc_mark *mark; struct pg_run *second; pgc_side *side; } pg_run;
enum pg_op { PG_COMPUTE, PG_ALL_REDUCE, PG_ALL_GATHER, PG_BROADCAST, PG_SEND, PG_RECV, PG_CHOOSE, PG_MASK };
enum pg_fault { PG_OK, PG_FAULT_TIMEOUT, PG_FAULT_COMPUTE, PG_FAULT_TRANSPORT, PG_FAULT_CLOSED };

pg_group *pg_group_new(int n_ranks, double deadline_s);
void pg_group_free(pg_group *group);
bool pg_group_reserve(pg_group *group, int64_t n_elements);
void pg_group_fail(pg_group *group, int fault, int rank, const char *text);
int pg_group_fault(const pg_group *group, int *rank, char *text, size_t size);
int64_t pg_group_n_reduces(const pg_group *group, int rank);
double pg_group_reduce_s(const pg_group *group, int rank);
void pg_group_serve(pg_group *group, int rank);
void pg_group_wait(pg_group *group, int rank, int n_left);
void pg_group_close(pg_group *group);
void pg_group_spin(pg_group *group, double seconds);
void pg_group_serialise(pg_group *group, bool is_serial);
bool pg_group_is_serial(const pg_group *group);

void pg_log_install(int min_level);
int pg_log_last_error(char *text, size_t size);
void pg_set_n_threads(ggml_backend_t backend, int n_threads);
ggml_backend_buffer_type_t pg_result_buffer_type(ggml_backend_dev_t device);
int pg_extra_buffer_types(ggml_backend_dev_t device, ggml_backend_buffer_type_t *out, int max);

pg_plan *pg_plan_new(ggml_backend_t backend, struct ggml_cgraph *graph, const pg_step *steps, int n_steps, int *unsupported_node);
void pg_plan_join(pg_plan *plan, pg_group *group, int rank);
void pg_runs_post(pg_group *group, pg_run *runs);
void pg_runs_finish(pg_group *group, pg_run *runs);
bool pg_plan_can_feed(const pg_plan *plan);
int pg_run_begin(pg_run *run);
int pg_run_end(pg_run *run);
void pg_runs_begin(pg_group *group, pg_run *runs);
void pg_runs_end(pg_group *group, pg_run *runs);
enum pg_replay_state { PG_REPLAY_OFF, PG_REPLAY_WAITING, PG_REPLAY_RECORDED, PG_REPLAY_REFUSED };
void pg_plan_use(pg_plan *plan, const void *api, bool may_fuse);
int pg_plan_n_fused(pg_plan *plan);
bool pg_plan_replay(pg_plan *plan);
void pg_plan_changed(pg_plan *plan);
enum pg_replay_state pg_plan_replay_state(const pg_plan *plan, char *why, size_t why_size);
bool pg_plan_reserve(pg_plan *plan, ggml_gallocr_t galloc);
bool pg_plan_layout(pg_plan *plan, ggml_gallocr_t galloc);
void pg_plan_free(pg_plan *plan);
int pg_plan_n_nodes(const pg_plan *plan);
int pg_plan_start(pg_plan *plan, const pg_transfer *inputs, int n_inputs);
int pg_plan_start_interruptible(pg_plan *plan, const pg_transfer *inputs, int n_inputs);
int pg_plan_run(pg_plan *plan, const pg_transfer *inputs, int n_inputs, const pg_transfer *outputs, int n_outputs);
int pg_first_bad_row(const pg_transfer *transfers, int n, int64_t *value);
void pg_plan_read(pg_plan *plan, const pg_transfer *outputs, int n_outputs);
bool pg_supports(ggml_backend_dev_t device, const struct ggml_tensor *node);
const char *pg_obstacle(ggml_backend_dev_t device, const struct ggml_tensor *node);
int pg_weight_buffer_type(ggml_backend_dev_t device, enum ggml_type type, const int64_t *ne, bool experts,
                          const ggml_backend_buffer_type_t *candidates, int n);

typedef struct { struct ggml_tensor *tensor; int dim; int64_t step; } pg_window;
bool pg_windows_can_move(const struct ggml_cgraph *graph, const pg_window *windows, int n, const char **reader);
void pg_windows_move(struct ggml_cgraph *graph, pg_window *windows, int n, int64_t delta, int64_t length);

bool pg_rows_copy(struct ggml_tensor *const *tables, int n_tables, int64_t from, int64_t to, int64_t n_rows);
