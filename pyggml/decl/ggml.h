/* ggml.h: types, tensors, operations, graphs. */
typedef uint16_t ggml_fp16_t;
typedef struct { uint16_t bits; } ggml_bf16_t;
struct ggml_context;
struct ggml_cgraph;
struct ggml_backend_buffer;

enum ggml_type { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F64, GGML_TYPE_I8, GGML_TYPE_I16,
                 GGML_TYPE_I32, GGML_TYPE_I64, GGML_TYPE_COUNT, ... };
enum ggml_op { GGML_OP_NONE, GGML_OP_VIEW, GGML_OP_RESHAPE, GGML_OP_PERMUTE, GGML_OP_CONT, GGML_OP_CONCAT, GGML_OP_REPEAT,
               GGML_OP_GET_ROWS, GGML_OP_ARGMAX, GGML_OP_ARGSORT, ... };
enum ggml_tensor_flag { GGML_TENSOR_FLAG_OUTPUT, ... };
enum ggml_prec { GGML_PREC_UNDEFINED, GGML_PREC_F32, ... };
enum ggml_op_hint { GGML_HINT_NONE, GGML_HINT_SRC0_IS_HADAMARD };
enum ggml_status { GGML_STATUS_ALLOC_FAILED, GGML_STATUS_FAILED, GGML_STATUS_SUCCESS, GGML_STATUS_ABORTED };
enum ggml_sort_order { GGML_SORT_ORDER_ASC, GGML_SORT_ORDER_DESC };
#define GGML_ROPE_TYPE_NEOX ...
#define GGML_MAX_DIMS ...
#define GGML_MAX_NAME ...

struct ggml_init_params { size_t mem_size; void *mem_buffer; bool no_alloc; };
struct ggml_tensor {
    enum ggml_type type;
    struct ggml_backend_buffer *buffer;
    int64_t ne[4];
    size_t nb[4];
    enum ggml_op op;
    int32_t flags;
    struct ggml_tensor *src[...];
    struct ggml_tensor *view_src;
    size_t view_offs;
    void *data;
    char name[...];
    ...;
};
typedef void (*ggml_to_float_t)(const void *x, float *y, int64_t k);
struct ggml_type_traits { const char *type_name; int64_t blck_size; size_t type_size; bool is_quantized;
                          ggml_to_float_t to_float; ...; };

const char *ggml_version(void);
const char *ggml_commit(void);
const char *ggml_status_to_string(enum ggml_status status);

size_t ggml_tensor_overhead(void);
size_t ggml_graph_overhead_custom(size_t size, bool grads);
struct ggml_context *ggml_init(struct ggml_init_params params);
void ggml_free(struct ggml_context *ctx);
size_t ggml_used_mem(const struct ggml_context *ctx);

int64_t ggml_blck_size(enum ggml_type type);
size_t ggml_type_size(enum ggml_type type);
size_t ggml_row_size(enum ggml_type type, int64_t ne);
const char *ggml_type_name(enum ggml_type type);
bool ggml_is_quantized(enum ggml_type type);
const struct ggml_type_traits *ggml_get_type_traits(enum ggml_type type);
bool ggml_quantize_requires_imatrix(enum ggml_type type);
void ggml_quantize_init(enum ggml_type type);
size_t ggml_quantize_chunk(enum ggml_type type, const float *src, void *dst, int64_t start, int64_t nrows,
                           int64_t n_per_row, const float *imatrix);
void ggml_fp32_to_fp16_row(const float *x, ggml_fp16_t *y, int64_t n);

size_t ggml_nbytes(const struct ggml_tensor *t);
int64_t ggml_nelements(const struct ggml_tensor *t);
bool ggml_is_contiguous(const struct ggml_tensor *t);
const char *ggml_op_desc(const struct ggml_tensor *t);
struct ggml_tensor *ggml_new_tensor(struct ggml_context *ctx, enum ggml_type type, int n_dims, const int64_t *ne);
struct ggml_tensor *ggml_set_name(struct ggml_tensor *t, const char *name);
void ggml_set_input(struct ggml_tensor *t);
void ggml_set_output(struct ggml_tensor *t);

struct ggml_tensor *ggml_add(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b);
struct ggml_tensor *ggml_add_id(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b, struct ggml_tensor *ids);
struct ggml_tensor *ggml_sub(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b);
struct ggml_tensor *ggml_mul(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b);
struct ggml_tensor *ggml_div(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b);
struct ggml_tensor *ggml_sqr(struct ggml_context *ctx, struct ggml_tensor *a);
struct ggml_tensor *ggml_sqrt(struct ggml_context *ctx, struct ggml_tensor *a);
struct ggml_tensor *ggml_log(struct ggml_context *ctx, struct ggml_tensor *a);
struct ggml_tensor *ggml_exp(struct ggml_context *ctx, struct ggml_tensor *a);
struct ggml_tensor *ggml_neg(struct ggml_context *ctx, struct ggml_tensor *a);
struct ggml_tensor *ggml_tanh(struct ggml_context *ctx, struct ggml_tensor *a);
struct ggml_tensor *ggml_relu(struct ggml_context *ctx, struct ggml_tensor *a);
struct ggml_tensor *ggml_gelu(struct ggml_context *ctx, struct ggml_tensor *a);
struct ggml_tensor *ggml_silu(struct ggml_context *ctx, struct ggml_tensor *a);
struct ggml_tensor *ggml_sigmoid(struct ggml_context *ctx, struct ggml_tensor *a);
struct ggml_tensor *ggml_sum_rows(struct ggml_context *ctx, struct ggml_tensor *a);
struct ggml_tensor *ggml_argmax(struct ggml_context *ctx, struct ggml_tensor *a);
struct ggml_tensor *ggml_repeat_4d(struct ggml_context *ctx, struct ggml_tensor *a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);
struct ggml_tensor *ggml_concat(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b, int dim);
struct ggml_tensor *ggml_swiglu_split(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b);
struct ggml_tensor *ggml_geglu_split(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b);
struct ggml_tensor *ggml_swiglu_oai(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b, float alpha, float limit);
struct ggml_tensor *ggml_norm(struct ggml_context *ctx, struct ggml_tensor *a, float eps);
struct ggml_tensor *ggml_rms_norm(struct ggml_context *ctx, struct ggml_tensor *a, float eps);
struct ggml_tensor *ggml_mul_mat(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b);
void ggml_mul_mat_set_hint(struct ggml_tensor *t, enum ggml_op_hint hint);
bool ggml_prec_set_acc(struct ggml_tensor *t, enum ggml_prec prec);
struct ggml_tensor *ggml_mul_mat_id(struct ggml_context *ctx, struct ggml_tensor *as, struct ggml_tensor *b, struct ggml_tensor *ids);
struct ggml_tensor *ggml_scale_bias(struct ggml_context *ctx, struct ggml_tensor *a, float s, float b);
struct ggml_tensor *ggml_clamp(struct ggml_context *ctx, struct ggml_tensor *a, float min, float max);
struct ggml_tensor *ggml_cpy(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b);
struct ggml_tensor *ggml_cast(struct ggml_context *ctx, struct ggml_tensor *a, enum ggml_type type);
struct ggml_tensor *ggml_cont(struct ggml_context *ctx, struct ggml_tensor *a);
struct ggml_tensor *ggml_reshape_4d(struct ggml_context *ctx, struct ggml_tensor *a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);
struct ggml_tensor *ggml_view_4d(struct ggml_context *ctx, struct ggml_tensor *a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3,
                                 size_t nb1, size_t nb2, size_t nb3, size_t offset);
struct ggml_tensor *ggml_permute(struct ggml_context *ctx, struct ggml_tensor *a, int axis0, int axis1, int axis2, int axis3);
struct ggml_tensor *ggml_get_rows(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b);
struct ggml_tensor *ggml_set_rows(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b, struct ggml_tensor *c);
struct ggml_tensor *ggml_soft_max_ext(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *mask, float scale, float max_bias);
void ggml_soft_max_add_sinks(struct ggml_tensor *a, struct ggml_tensor *sinks);
struct ggml_tensor *ggml_rope_ext(struct ggml_context *ctx, struct ggml_tensor *a, struct ggml_tensor *b, struct ggml_tensor *c,
                                  int n_dims, int mode, int n_ctx_orig, float freq_base, float freq_scale, float ext_factor,
                                  float attn_factor, float beta_fast, float beta_slow);
struct ggml_tensor *ggml_flash_attn_ext(struct ggml_context *ctx, struct ggml_tensor *q, struct ggml_tensor *k, struct ggml_tensor *v,
                                        struct ggml_tensor *mask, float scale, float max_bias, float logit_softcap);
void ggml_flash_attn_ext_add_sinks(struct ggml_tensor *a, struct ggml_tensor *sinks);
struct ggml_tensor *ggml_argsort_top_k(struct ggml_context *ctx, struct ggml_tensor *a, int k);

struct ggml_cgraph *ggml_new_graph_custom(struct ggml_context *ctx, size_t size, bool grads);
void ggml_build_forward_expand(struct ggml_cgraph *graph, struct ggml_tensor *t);
int ggml_graph_n_nodes(struct ggml_cgraph *graph);
struct ggml_tensor *ggml_graph_node(struct ggml_cgraph *graph, int i);
