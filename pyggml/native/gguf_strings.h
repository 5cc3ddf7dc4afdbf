// Unpacks an array of strings of a checked GGUF file, so that Python can decode and split it in one go.
#pragma once

#include <stdint.h>

// Copies n strings, each behind its 64-bit length, to `out`, each with a zero byte after it.
// Returns how many zero bytes lie within the strings; `out` takes the source's bytes less 7 a string.
uint64_t pg_gguf_join_strings(const uint8_t * strings, uint64_t n, uint8_t * out);
