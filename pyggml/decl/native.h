/* pyggml/native: one graph laid out and run on one backend. */
typedef struct pg_plan pg_plan;
typedef struct { struct ggml_tensor *tensor; void *data; size_t offset; size_t size; } pg_transfer;

void pg_log_install(int min_level);
int pg_log_last_error(char *text, size_t size);
void pg_set_n_threads(ggml_backend_t backend, int n_threads);
int pg_extra_buffer_types(ggml_backend_dev_t device, ggml_backend_buffer_type_t *out, int max);

pg_plan *pg_plan_new(ggml_backend_t backend, struct ggml_cgraph *graph, int *unsupported_node);
bool pg_plan_reserve(pg_plan *plan, ggml_gallocr_t galloc);
bool pg_plan_layout(pg_plan *plan, ggml_gallocr_t galloc);
void pg_plan_free(pg_plan *plan);
int pg_plan_n_nodes(const pg_plan *plan);
enum ggml_status pg_plan_start(pg_plan *plan, const pg_transfer *inputs, int n_inputs);
enum ggml_status pg_plan_run(pg_plan *plan, const pg_transfer *inputs, int n_inputs, const pg_transfer *outputs, int n_outputs);
void pg_plan_read(pg_plan *plan, const pg_transfer *outputs, int n_outputs);
int pg_weight_buffer_type(ggml_backend_dev_t device, enum ggml_type type, const int64_t *ne, bool experts,
                          const ggml_backend_buffer_type_t *candidates, int n);
