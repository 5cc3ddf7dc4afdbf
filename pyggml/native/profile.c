// Node times: each node is a graph view of its own. Kernel times: CUPTI's activity records, which it hands over in
// buffers from a thread of its own. Only the fields that all CUPTI since CUDA 9 have at the same place are read, so that
// one build serves every CUDA; they are declared here because no header is needed for them.

#include "profile.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static bool has_work(const struct ggml_tensor * node) {
    switch (node->op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE:
            return false;
        default:
            return !ggml_is_empty(node);
    }
}

int pg_profile_nodes(ggml_backend_t backend, struct ggml_cgraph * graph, const pg_transfer * inputs, int n_inputs,
                     double * seconds) {
    for (int i = 0; i < n_inputs; i++) {
        ggml_backend_tensor_set_async(backend, inputs[i].tensor, inputs[i].data, inputs[i].offset, inputs[i].size);
    }
    ggml_backend_synchronize(backend);
    for (int i = 0; i < graph->n_nodes; i++) {
        seconds[i] = 0;
        if (!has_work(graph->nodes[i])) {
            continue;
        }
        struct ggml_cgraph view = ggml_graph_view(graph, i, i + 1);
        const double start = now_s();
        const enum ggml_status status = ggml_backend_graph_compute(backend, &view);
        ggml_backend_synchronize(backend);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        seconds[i] = now_s() - start;
    }
    return GGML_STATUS_SUCCESS;
}

// CUPTI. Kinds and the beginnings of its records.

enum { KIND_MEMCPY = 1, KIND_MEMSET = 2, KIND_KERNEL = 3, KIND_CONCURRENT_KERNEL = 10 };

typedef struct {
    uint32_t kind;
    uint32_t caches_and_registers;
    uint32_t cache_requested, cache_executed;
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local_per_thread, local_total, correlation;
    int64_t grid_id;
    const char * name;
} kernel_record;

typedef struct {
    uint32_t kind;
    uint8_t copy_kind, source_kind, target_kind, flags;
    uint64_t bytes, start, end;
    uint32_t device;
} memory_record;

typedef void (*request_buffer)(uint8_t ** buffer, size_t * size, size_t * max_records);
typedef void (*complete_buffer)(void * context, uint32_t stream, uint8_t * buffer, size_t size, size_t valid_size);

static struct {
    pthread_mutex_t lock;
    bool is_on;
    void * library;
    int (*register_callbacks)(request_buffer, complete_buffer);
    int (*enable)(int kind);
    int (*disable)(int kind);
    int (*flush)(uint32_t flag);
    int (*next_record)(uint8_t * buffer, size_t valid_size, void ** record);
    pg_kernel * kernels;
    int n_kernels, max_kernels;
} trace = { .lock = PTHREAD_MUTEX_INITIALIZER };

enum { BUFFER_BYTES = 1 << 21 };

static void give_buffer(uint8_t ** buffer, size_t * size, size_t * max_records) {
    *buffer = aligned_alloc(64, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
    *max_records = 0;
}

static void count(const char * name, const int32_t * grid, int card, uint64_t start, uint64_t end) {
    for (int i = 0; i < trace.n_kernels; i++) {
        pg_kernel * k = &trace.kernels[i];
        if (k->card == card && memcmp(k->grid, grid, sizeof(k->grid)) == 0 && strncmp(k->name, name, sizeof(k->name) - 1) == 0) {
            k->count++;
            k->ns += end - start;
            return;
        }
    }
    if (trace.n_kernels == trace.max_kernels) {
        const int max = trace.max_kernels ? 2 * trace.max_kernels : 256;
        pg_kernel * kernels = realloc(trace.kernels, max * sizeof(pg_kernel));
        if (!kernels) {
            return;
        }
        trace.kernels = kernels;
        trace.max_kernels = max;
    }
    pg_kernel * k = &trace.kernels[trace.n_kernels++];
    snprintf(k->name, sizeof(k->name), "%s", name);
    memcpy(k->grid, grid, sizeof(k->grid));
    k->card = card;
    k->count = 1;
    k->ns = end - start;
}

static void count_record(const void * record) {
    const uint32_t kind = *(const uint32_t *) record;
    const int32_t no_grid[3] = { 0, 0, 0 };
    if (kind == KIND_KERNEL || kind == KIND_CONCURRENT_KERNEL) {
        const kernel_record * r = record;
        count(r->name ? r->name : "unnamed", r->grid, r->device, r->start, r->end);
    } else if (kind == KIND_MEMCPY || kind == KIND_MEMSET) {
        const memory_record * r = record;
        count(kind == KIND_MEMCPY ? "memory copy" : "memory fill", no_grid, r->device, r->start, r->end);
    }
}

static void take_buffer(void * context, uint32_t stream, uint8_t * buffer, size_t size, size_t valid_size) {
    (void) context, (void) stream, (void) size;
    void * record = NULL;
    pthread_mutex_lock(&trace.lock);
    while (trace.is_on && valid_size > 0 && trace.next_record(buffer, valid_size, &record) == 0) {
        count_record(record);
    }
    pthread_mutex_unlock(&trace.lock);
    free(buffer);
}

static bool find_functions(const char * library, char * why, size_t why_size) {
    if (trace.library) {
        return true;
    }
    void * found = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!found) {
        snprintf(why, why_size, "%s", dlerror());
        return false;
    }
    *(void **) &trace.register_callbacks = dlsym(found, "cuptiActivityRegisterCallbacks");
    *(void **) &trace.enable = dlsym(found, "cuptiActivityEnable");
    *(void **) &trace.disable = dlsym(found, "cuptiActivityDisable");
    *(void **) &trace.flush = dlsym(found, "cuptiActivityFlushAll");
    *(void **) &trace.next_record = dlsym(found, "cuptiActivityGetNextRecord");
    if (!trace.register_callbacks || !trace.enable || !trace.disable || !trace.flush || !trace.next_record) {
        snprintf(why, why_size, "%s lacks CUPTI's activity functions", library);
        dlclose(found);
        return false;
    }
    trace.library = found;
    return true;
}

static const int KINDS[] = { KIND_CONCURRENT_KERNEL, KIND_MEMCPY, KIND_MEMSET };

bool pg_trace_begin(const char * library, char * why, size_t why_size) {
    if (trace.is_on) {
        snprintf(why, why_size, "a trace is on already");
        return false;
    }
    if (!find_functions(library, why, why_size)) {
        return false;
    }
    int status = trace.register_callbacks(give_buffer, take_buffer);
    for (size_t i = 0; i < sizeof(KINDS) / sizeof(KINDS[0]) && status == 0; i++) {
        status = trace.enable(KINDS[i]);
    }
    if (status != 0) {
        snprintf(why, why_size, "CUPTI refused with error %d", status);
        return false;
    }
    trace.n_kernels = 0;
    trace.is_on = true;
    return true;
}

void pg_trace_restart(void) {
    if (trace.is_on) {
        trace.flush(1);
        pthread_mutex_lock(&trace.lock);
        trace.n_kernels = 0;
        pthread_mutex_unlock(&trace.lock);
    }
}

int pg_trace_end(pg_kernel * out, int max) {
    if (!trace.is_on) {
        return -1;
    }
    trace.flush(1);
    for (size_t i = 0; i < sizeof(KINDS) / sizeof(KINDS[0]); i++) {
        trace.disable(KINDS[i]);
    }
    pthread_mutex_lock(&trace.lock);
    trace.is_on = false;
    const int n = trace.n_kernels;
    if (n > 0) {
        memcpy(out, trace.kernels, (n < max ? n : max) * sizeof(pg_kernel));
    }
    free(trace.kernels);
    trace.kernels = NULL;
    trace.n_kernels = trace.max_kernels = 0;
    pthread_mutex_unlock(&trace.lock);
    return n;
}
