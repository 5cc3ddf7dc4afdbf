// What a device's backend module can be told and asked, where ggml answers only through its registry; and where results lie.

#include "devices.h"

#include "ggml-backend-impl.h"

#include <pthread.h>

void pg_set_n_threads(ggml_backend_t backend, int n_threads) {
    ggml_backend_dev_t device = ggml_backend_get_device(backend);
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
    ggml_backend_set_n_threads_t set =
        (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (set) {
        set(backend, n_threads);
    }
}

int pg_extra_buffer_types(ggml_backend_dev_t device, ggml_backend_buffer_type_t * out, int max) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
    ggml_backend_dev_get_extra_bufts_t get =
        (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts");
    int n = 0;
    if (get) {
        for (ggml_backend_buffer_type_t * b = get(device); b && *b && n < max; b++) {
            out[n++] = *b;
        }
    }
    return n;
}

int pg_weight_buffer_type(ggml_backend_dev_t device, enum ggml_type type, const int64_t * ne, bool experts,
                          const ggml_backend_buffer_type_t * candidates, int n) {
    struct ggml_init_params params = { 8 * ggml_tensor_overhead(), NULL, true };
    struct ggml_context * ctx = ggml_init(params);
    struct ggml_tensor * w = ggml_new_tensor(ctx, type, 4, ne);
    const int64_t n_tokens = 512;  // a prefill's worth: a buffer type must serve that and decode
    struct ggml_tensor * op;
    if (experts) {
        struct ggml_tensor * ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, n_tokens);
        op = ggml_mul_mat_id(ctx, w, ggml_new_tensor_3d(ctx, GGML_TYPE_F32, ne[0], 1, n_tokens), ids);
    } else {
        op = ggml_mul_mat(ctx, w, ggml_new_tensor_4d(ctx, GGML_TYPE_F32, ne[0], n_tokens, ne[2], ne[3]));
    }
    int found = -1;
    for (int i = 0; i < n && found < 0; i++) {
        w->buffer = ggml_backend_buft_alloc_buffer(candidates[i], 0);
        if (ggml_backend_dev_supports_op(device, op)) {
            found = i;
        }
        ggml_backend_buffer_free(w->buffer);
    }
    ggml_free(ctx);
    return found;
}

// ggml puts results in a processor's memory at multiples of 32 bytes, in buffers that begin at multiples of 64. Behind one
// input of an odd size they lie across cache lines, and every store of AVX-512 touches two.
static const size_t cache_line = 64;

static size_t line_alignment(ggml_backend_buffer_type_t type) {
    (void) type;
    return cache_line;
}

static ggml_backend_buffer_t plain_buffer(ggml_backend_buffer_type_t type, size_t size) {
    return ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(type->device), size);
}

// Processors are one device.
static struct ggml_backend_buffer_type lines;
static pthread_mutex_t making_lines = PTHREAD_MUTEX_INITIALIZER;

ggml_backend_buffer_type_t pg_result_buffer_type(ggml_backend_dev_t device) {
    ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(device);
    if (ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU || ggml_backend_buft_get_alignment(plain) >= cache_line) {
        return plain;
    }
    pthread_mutex_lock(&making_lines);
    if (!lines.device) {
        lines = *plain;
        lines.iface.get_alignment = line_alignment;
        lines.iface.alloc_buffer = plain_buffer;
        lines.device = device;
    }
    pthread_mutex_unlock(&making_lines);
    return &lines;
}
