// Gate and up of the chosen experts, joined, then their down, weighted and added up: two launches. The second asks for its
// weights while the first runs: the first lets it start only when the router's choice is there.

#include "fused_experts.h"

#include "product_types.h"
#include "workspace.h"

// Between the launches: the choice, then the hidden values.
static float * hidden_of(float * between) {
    return between + 2 * MAX_CHOSEN;
}

size_t between_size(const pg_fused_experts & of) {
    return 2 * MAX_CHOSEN + ggml_nelements(of.ids) * of.gate->ne[1];
}

static expert_products describe(const pg_fused_experts & of, const ggml_tensor * matrix) {
    expert_products p = {};
    p.n_matrices = 1;
    p.row_bytes = static_cast<int64_t>(matrix->nb[1]);
    p.expert_bytes = static_cast<int64_t>(matrix->nb[2]);
    p.n_weights = static_cast<int>(matrix->ne[0]);
    p.n_columns = static_cast<int>(of.ids->ne[1]);
    p.n_used = static_cast<int>(of.ids->ne[0]);
    p.n_experts = static_cast<int>(matrix->ne[2]);
    p.matrix[0].data = static_cast<const char *>(matrix->data);
    p.matrix[0].n_rows = static_cast<int>(matrix->ne[1]);
    p.matrix[0].out_stride = p.matrix[0].residual_stride = matrix->ne[1];
    return p;
}

static expert_products describe_gate(const pg_fused_experts & of, float * between) {
    expert_products p = describe(of, of.gate);
    p.in.x = floats(of.x);
    p.in.x_stride = p.n_weights;
    p.ids = static_cast<const int32_t *>(of.ids->data);
    p.ids_stride = static_cast<int64_t>(of.ids->nb[1] / sizeof(int32_t));
    p.weights = floats(of.weights);
    p.weights_stride = p.n_used;
    p.kept_ids = reinterpret_cast<int32_t *>(between);
    p.kept_weights = between + MAX_CHOSEN;
    p.gate = of.kind;
    p.n_matrices = 2;
    p.matrix[0].out = hidden_of(between);
    p.matrix[1].data = static_cast<const char *>(of.up->data);
    p.matrix[1].n_rows = p.matrix[0].n_rows;
    return p;
}

static expert_products describe_down(const pg_fused_experts & of, const expert_products & gate) {
    expert_products p = describe(of, of.down);
    p.in.x = gate.matrix[0].out;
    p.in.x_stride = static_cast<int64_t>(p.n_used) * p.n_weights;
    p.ids = gate.kept_ids;
    p.weights = gate.kept_weights;
    p.ids_stride = p.weights_stride = p.n_used;
    p.matrix[0].residual = floats(of.residual);
    p.matrix[0].out = static_cast<float *>(of.out->data);
    return p;
}

cudaError_t launch_fused_experts(const pg_fused_experts & of, float * between, start_of_next next, const product_card & card,
                                 cudaStream_t stream) {
    const expert_products gate = describe_gate(of, between);
    const cudaError_t status = launches_of(of.gate->type).experts(gate, card, stream);
    if (status != cudaSuccess) {
        return status;
    }
    expert_products down = describe_down(of, gate);
    down.next = next;
    return launches_of(of.down->type).experts(down, card, stream);
}
