// Which of our kernels are taken in place of ggml's.
#pragma once

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// products  of one column, with norm, gate, heads, residual
// columns   products of 2 to 16 columns
// types     products of types that were not measured
// experts   chosen by one token; experts-columns: by each of 2 to 8 tokens
// router    norm and the product that rates experts
// attention of one token a sequence, with the heads before it (compute capability 9.0); attention-ranks: also beside sums over ranks,
//           not measured
#define PG_FUSED_USUAL "products,columns,experts,router,attention"  // measured to be faster on an H200

// PYGGML_FUSED in the environment: names with commas, `all`, or 0 for none; the usual ones if it is not set, or 1.
static inline bool pg_fuse_takes(const char * part) {
    const char * setting = getenv("PYGGML_FUSED");
    if (!setting || !*setting || strcmp(setting, "1") == 0) {
        setting = PG_FUSED_USUAL;
    }
    if (strcmp(setting, "all") == 0) {
        return true;
    }
    const size_t n = strlen(part);
    for (const char * at = setting; (at = strstr(at, part)) != NULL; at += n) {
        if ((at == setting || at[-1] == ',') && (at[n] == ',' || at[n] == 0)) {
            return true;
        }
    }
    return false;
}
