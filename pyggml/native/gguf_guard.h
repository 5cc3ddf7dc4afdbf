// Checks the header of a GGUF file that lies in memory and says where everything in it is.
// Nothing in the file is believed: every count and length is held against the bytes that are really there,
// and memory grows with what has been read, never with what the file announces.
// Knows nothing of shards or models. Thread-safe: all state is in the index.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t key_at;  // positions and lengths in bytes from the start of the file
    uint64_t key_length;
    uint64_t value_at; // an array's first element; a string's length field
    uint64_t value_bytes;
    uint64_t n;        // elements; 1 if not an array
    int32_t type;      // gguf_type of the value or of the array's elements
    bool is_array;
} pg_gguf_pair;

typedef struct {
    uint64_t name_at;
    uint64_t name_length;
    uint64_t data_at;
    uint64_t n_bytes;
    int64_t ne[4];
    uint32_t n_dims;
    int32_t type;
} pg_gguf_tensor;

typedef struct {
    uint32_t version;
    uint32_t alignment;
    uint64_t n_pairs;
    uint64_t n_tensors;
    uint64_t data_end; // one past the last tensor's last byte
    pg_gguf_pair * pairs;
    pg_gguf_tensor * tensors;
    char field[96];    // what was being read when a fault was found
    char problem[288]; // the fault, empty if there is none
} pg_gguf_index;

// Returns true and fills the index if the file is sound, false with `field` and `problem` if not.
// Accepts nothing that ggml's own reader refuses. The caller zeroes the index and frees it in both cases.
bool pg_gguf_check(const uint8_t * data, size_t size, pg_gguf_index * index);
void pg_gguf_index_free(pg_gguf_index * index);
