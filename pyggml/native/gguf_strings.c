#include "gguf_strings.h"

#include <string.h>

uint64_t pg_gguf_join_strings(const uint8_t * strings, uint64_t n, uint8_t * out) {
    uint64_t n_zeros = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t length;
        memcpy(&length, strings, sizeof(length));
        strings += sizeof(length);
        for (uint64_t j = 0; j < length; j++) {
            n_zeros += strings[j] == 0;
        }
        memcpy(out, strings, length);
        strings += length;
        out += length;
        *out++ = 0;
    }
    return n_zeros;
}
