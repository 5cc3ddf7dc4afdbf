/* native/gguf_*.h: checking and unpacking of GGUF files; of gguf.h only what tests hold it against. */
struct gguf_context;
struct gguf_init_params { bool no_alloc; struct ggml_context **ctx; };
struct gguf_context *gguf_init_from_buffer(const void *data, size_t size, struct gguf_init_params params);
void gguf_free(struct gguf_context *ctx);

typedef struct { uint64_t key_at; uint64_t key_length; uint64_t value_at; uint64_t value_bytes; uint64_t n;
                 int32_t type; bool is_array; } pg_gguf_pair;
typedef struct { uint64_t name_at; uint64_t name_length; uint64_t data_at; uint64_t n_bytes; int64_t ne[4]; uint32_t n_dims;
                 int32_t type; } pg_gguf_tensor;
typedef struct { uint32_t version; uint32_t alignment; uint64_t n_pairs; uint64_t n_tensors; uint64_t data_end;
                 pg_gguf_pair *pairs; pg_gguf_tensor *tensors; char field[96]; char problem[288]; } pg_gguf_index;
bool pg_gguf_check(const uint8_t *data, size_t size, pg_gguf_index *index);
void pg_gguf_index_free(pg_gguf_index *index);
uint64_t pg_gguf_join_strings(const uint8_t *strings, uint64_t n, uint8_t *out);
