// The nodes that begin at one are tried against each kind of run: experts, products, routers.

#include "fuse.h"

#include "fuse_experts.h"
#include "fuse_parts.h"
#include "fuse_products.h"
#include "fuse_router.h"

#include "ggml-impl.h"

#include <string.h>

int pg_fuse_match(const struct ggml_cgraph * graph, int first, int stop, bool may_attend, pg_fused * out) {
    const pg_fuse_run start = { .graph = graph, .first = first, .at = first, .stop = stop, .may_attend = may_attend };
    pg_fuse_run r = start;
    memset(out, 0, sizeof(*out));
    if (pg_is_free(graph->nodes[first])) {
        return 0;
    }
    out->is_experts = graph->nodes[first]->op == GGML_OP_MUL_MAT_ID;
    const char * experts = graph->nodes[first]->ne[2] == 1 ? "experts" : "experts-columns";
    bool is_taken = out->is_experts ? pg_fuse_takes(experts) && pg_match_experts(&r, &out->experts) : pg_match_products(&r, out);
    if (!is_taken && !out->is_experts && pg_fuse_takes("router")) {
        r = start;
        memset(out, 0, sizeof(*out));
        is_taken = pg_match_router(&r, &out->products);
    }
    out->n_nodes = is_taken ? r.at - first : 0;
    return out->n_nodes;
}
