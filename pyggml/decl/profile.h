/* pyggml/native: where a step's time goes. */
int pg_profile_nodes(ggml_backend_t backend, struct ggml_cgraph *graph, const pg_transfer *inputs, int n_inputs, double *seconds);
typedef struct { char name[512]; int grid[3]; int card; int64_t count; int64_t ns; } pg_kernel;
bool pg_trace_begin(const char *library, char *why, size_t why_size);
void pg_trace_restart(void);
int pg_trace_end(pg_kernel *out, int max);
