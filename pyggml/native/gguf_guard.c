#include "gguf_guard.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml.h"
#include "gguf.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF files are little-endian and are read in place: a big-endian host is not supported"
#endif

#define MAX_KEY_LENGTH 65535          // the format's limit
#define MAX_STRING_LENGTH (1ull << 30) // ggml's limits
#define MAX_ARRAY_LENGTH (1ull << 30)
#define MIN_ALIGNMENT 8     // the format's limit; ggml itself takes smaller ones
#define MIN_PAIR_BYTES 14   // length, a one-byte key, type, a one-byte value
#define MIN_TENSOR_BYTES 25 // length, a one-byte name, n_dims, type, offset

typedef struct {
    const uint8_t * data;
    uint64_t size;
    uint64_t at;
    pg_gguf_index * index;
} walk;

typedef struct {
    const uint8_t * bytes;
    uint64_t length;
} span;

static const uint8_t value_bytes[GGUF_TYPE_COUNT] = {
    [GGUF_TYPE_UINT8] = 1,   [GGUF_TYPE_INT8] = 1,   [GGUF_TYPE_BOOL] = 1,    [GGUF_TYPE_UINT16] = 2,
    [GGUF_TYPE_INT16] = 2,   [GGUF_TYPE_UINT32] = 4, [GGUF_TYPE_INT32] = 4,   [GGUF_TYPE_FLOAT32] = 4,
    [GGUF_TYPE_UINT64] = 8,  [GGUF_TYPE_INT64] = 8,  [GGUF_TYPE_FLOAT64] = 8,
};

__attribute__((format(printf, 2, 3))) static bool fail(walk * w, const char * format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(w->index->problem, sizeof(w->index->problem), format, args);
    va_end(args);
    return false;
}

__attribute__((format(printf, 2, 3))) static void enter(walk * w, const char * format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(w->index->field, sizeof(w->index->field), format, args);
    va_end(args);
}

static void enter_named(walk * w, uint64_t at, uint64_t length) {
    char * field = w->index->field;
    size_t n = length < sizeof(w->index->field) ? length : sizeof(w->index->field) - 1;
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = w->data[at + i];
        field[i] = byte >= 0x20 && byte < 0x7f ? (char)byte : '?';
    }
    field[n] = '\0';
}

static uint64_t remaining(const walk * w) {
    return w->size - w->at;
}

static bool take(walk * w, void * into, size_t n, const char * what) {
    if (remaining(w) < n)
        return fail(w, "the file ends within the %s, at byte %" PRIu64 ": it was cut short", what, w->size);
    memcpy(into, w->data + w->at, n);
    w->at += n;
    return true;
}

#define TAKE(w, variable, what) take(w, &(variable), sizeof(variable), what)

static bool take_string(walk * w, span * out, const char * what) {
    uint64_t length = 0;
    if (!take(w, &length, sizeof(length), what))
        return false;
    if (length > remaining(w))
        return fail(w, "the %s claims %" PRIu64 " bytes, but only %" PRIu64 " are left in the file", what, length,
                    remaining(w));
    if (length > MAX_STRING_LENGTH)
        return fail(w, "the %s has %" PRIu64 " bytes; at most %llu are allowed", what, length, MAX_STRING_LENGTH);
    *out = (span){w->data + w->at, length};
    w->at += length;
    return true;
}

// Makes room for item n of an array that doubles as it fills.
static bool grow(walk * w, void ** array, uint64_t n, size_t item_bytes) {
    if (n & (n - 1))
        return true;
    void * larger = realloc(*array, (n ? 2 * n : 1) * item_bytes);
    if (!larger)
        return fail(w, "out of memory after %" PRIu64 " entries", n);
    *array = larger;
    return true;
}

static bool check_count(walk * w, const char * field, uint64_t count, uint64_t min_bytes) {
    enter(w, "%s", field);
    if (count > remaining(w) / min_bytes)
        return fail(w, "the header announces %" PRIu64 ", but a file of %" PRIu64 " bytes has no room for them", count,
                    w->size);
    return true;
}

static bool check_header(walk * w) {
    pg_gguf_index * index = w->index;
    uint8_t magic[4];
    enter(w, "magic");
    if (!take(w, magic, sizeof(magic), "magic"))
        return false;
    if (memcmp(magic, GGUF_MAGIC, sizeof(magic)))
        return fail(w, "the file begins with bytes %02x %02x %02x %02x, not with 'GGUF': it is not a GGUF file",
                    magic[0], magic[1], magic[2], magic[3]);
    enter(w, "version");
    if (!TAKE(w, index->version, "version"))
        return false;
    if (index->version && !(index->version & 0xffff))
        return fail(w, "0x%08" PRIx32 ": the file's byte order is big-endian; only little-endian files can be read",
                    index->version);
    if (index->version < 2 || index->version > GGUF_VERSION)
        return fail(w, "version %" PRIu32 " is not supported; 2 and 3 are", index->version);
    enter(w, "n_tensors");
    if (!TAKE(w, index->n_tensors, "tensor count"))
        return false;
    enter(w, "n_kv");
    if (!TAKE(w, index->n_pairs, "key count"))
        return false;
    return check_count(w, "n_tensors", index->n_tensors, MIN_TENSOR_BYTES) &&
           check_count(w, "n_kv", index->n_pairs, MIN_PAIR_BYTES);
}

static bool check_key(walk * w, span key) {
    if (key.length == 0)
        return fail(w, "the key is empty");
    if (key.length > MAX_KEY_LENGTH)
        return fail(w, "the key has %" PRIu64 " bytes; at most %d are allowed", key.length, MAX_KEY_LENGTH);
    for (uint64_t i = 0; i < key.length; i++)
        if (key.bytes[i] < 0x20 || key.bytes[i] > 0x7e)
            return fail(w, "byte %" PRIu64 " of the key is 0x%02x; keys are printable ASCII", i, key.bytes[i]);
    return true;
}

static bool skip_values(walk * w, const pg_gguf_pair * pair) {
    if (pair->n > MAX_ARRAY_LENGTH)
        return fail(w, "the array claims %" PRIu64 " elements; at most %llu are allowed", pair->n,
                    MAX_ARRAY_LENGTH);
    uint64_t least = pair->type == GGUF_TYPE_STRING ? sizeof(uint64_t) : value_bytes[pair->type];
    if (pair->n > remaining(w) / least)
        return fail(w, "%" PRIu64 " value(s) of type %s need more than the %" PRIu64 " bytes left in the file",
                    pair->n, gguf_type_name((enum gguf_type)pair->type), remaining(w));
    if (pair->type != GGUF_TYPE_STRING) {
        w->at += pair->n * least;
        return true;
    }
    span value;
    for (uint64_t i = 0; i < pair->n; i++)
        if (!take_string(w, &value, "string"))
            return false;
    return true;
}

static bool check_alignment(walk * w, const pg_gguf_pair * pair) {
    if (pair->is_array || pair->type != GGUF_TYPE_UINT32)
        return fail(w, "the alignment has to be a single u32, not %s%s", pair->is_array ? "an array of " : "",
                    gguf_type_name((enum gguf_type)pair->type));
    memcpy(&w->index->alignment, w->data + pair->value_at, sizeof(uint32_t));
    uint32_t alignment = w->index->alignment;
    if (alignment < MIN_ALIGNMENT || (alignment & (alignment - 1)))
        return fail(w, "the alignment is %" PRIu32 "; it has to be a power of two from %d on", alignment, MIN_ALIGNMENT);
    return true;
}

static bool read_pair(walk * w, uint64_t i) {
    span key = { 0 };
    enter(w, "key %" PRIu64, i);
    if (!grow(w, (void **)&w->index->pairs, i, sizeof(pg_gguf_pair)) || !take_string(w, &key, "key") ||
        !check_key(w, key))
        return false;
    pg_gguf_pair * pair = &w->index->pairs[i];
    *pair = (pg_gguf_pair){.key_at = key.bytes - w->data, .key_length = key.length, .n = 1};
    enter_named(w, pair->key_at, key.length);
    if (!TAKE(w, pair->type, "value type"))
        return false;
    pair->is_array = pair->type == GGUF_TYPE_ARRAY;
    if (pair->is_array && (!TAKE(w, pair->type, "element type") || !TAKE(w, pair->n, "array's length")))
        return false;
    if (pair->type < 0 || pair->type >= GGUF_TYPE_COUNT)
        return fail(w, "value type %" PRId32 " does not exist; types are 0 to %d", pair->type, GGUF_TYPE_COUNT - 1);
    if (pair->type == GGUF_TYPE_ARRAY)
        return fail(w, "the value is an array of arrays, which ggml does not support");
    pair->value_at = w->at;
    if (!skip_values(w, pair))
        return false;
    pair->value_bytes = w->at - pair->value_at;
    const char * special = GGUF_KEY_GENERAL_ALIGNMENT;
    bool is_alignment = key.length == strlen(special) && !memcmp(key.bytes, special, key.length);
    return !is_alignment || check_alignment(w, pair);
}

static bool check_name(walk * w, span name) {
    if (name.length == 0)
        return fail(w, "its name is empty");
    if (name.length >= GGML_MAX_NAME)
        return fail(w, "its name has %" PRIu64 " bytes; ggml holds at most %d", name.length, GGML_MAX_NAME - 1);
    if (memchr(name.bytes, 0, name.length))
        return fail(w, "its name contains a zero byte");
    return true;
}

static bool read_dimensions(walk * w, pg_gguf_tensor * tensor, int64_t * n_elements) {
    if (!TAKE(w, tensor->n_dims, "number of dimensions"))
        return false;
    if (tensor->n_dims > GGML_MAX_DIMS)
        return fail(w, "%" PRIu32 " dimensions; at most %d are allowed", tensor->n_dims, GGML_MAX_DIMS);
    *n_elements = 1;
    for (uint32_t d = 0; d < tensor->n_dims; d++) {
        if (!TAKE(w, tensor->ne[d], "dimensions"))
            return false;
        if (tensor->ne[d] < 0)
            return fail(w, "dimension %" PRIu32 " is %" PRIu64 ", which is 2^63 or more", d,
                        (uint64_t)tensor->ne[d]);
        if (__builtin_mul_overflow(*n_elements, tensor->ne[d], n_elements))
            return fail(w, "the product of the dimensions up to %" PRIu32 " is 2^63 or more", d);
    }
    return true;
}

static bool check_type(walk * w, pg_gguf_tensor * tensor, int64_t n_elements) {
    if (tensor->type < 0 || tensor->type >= GGML_TYPE_COUNT)
        return fail(w, "type %" PRId32 " does not exist; types are 0 to %d", tensor->type, GGML_TYPE_COUNT - 1);
    enum ggml_type type = (enum ggml_type)tensor->type;
    int64_t block_elements = ggml_blck_size(type);
    if (block_elements == 0)
        return fail(w, "type %" PRId32 " was removed from ggml", tensor->type);
    if (tensor->ne[0] % block_elements)
        return fail(w, "a row of %" PRId64 " elements is no multiple of type %s's block of %" PRId64, tensor->ne[0],
                    ggml_type_name(type), block_elements);
    uint64_t n_blocks = (uint64_t)(n_elements / block_elements);
    if (__builtin_mul_overflow(n_blocks, ggml_type_size(type), &tensor->n_bytes))
        return fail(w, "%" PRId64 " elements of %s are 2^64 bytes or more", n_elements, ggml_type_name(type));
    return true;
}

// Leaves the offset in data_at, from the start of the data section, which is not known yet.
static bool read_tensor(walk * w, uint64_t i) {
    span name;
    enter(w, "tensor %" PRIu64, i);
    if (!grow(w, (void **)&w->index->tensors, i, sizeof(pg_gguf_tensor)) || !take_string(w, &name, "name") ||
        !check_name(w, name))
        return false;
    pg_gguf_tensor * tensor = &w->index->tensors[i];
    *tensor = (pg_gguf_tensor){.name_at = name.bytes - w->data, .name_length = name.length, .ne = {1, 1, 1, 1}};
    enter_named(w, tensor->name_at, name.length);
    int64_t n_elements = 0;
    return read_dimensions(w, tensor, &n_elements) && TAKE(w, tensor->type, "type") &&
           check_type(w, tensor, n_elements) && TAKE(w, tensor->data_at, "offset");
}

static int compare_spans(const void * left, const void * right) {
    const span * a = left;
    const span * b = right;
    if (a->length != b->length)
        return a->length < b->length ? -1 : 1;
    return memcmp(a->bytes, b->bytes, a->length);
}

static bool check_unique(walk * w, span * names, uint64_t n, const char * what) {
    qsort(names, n, sizeof(span), compare_spans);
    for (uint64_t i = 1; i < n; i++)
        if (!compare_spans(&names[i - 1], &names[i])) {
            enter_named(w, names[i].bytes - w->data, names[i].length);
            return fail(w, "the file has two %s of this name", what);
        }
    return true;
}

static bool check_names_unique(walk * w) {
    const pg_gguf_index * index = w->index;
    uint64_t most = index->n_pairs > index->n_tensors ? index->n_pairs : index->n_tensors;
    span * names = malloc((most + 1) * sizeof(span));
    if (!names)
        return fail(w, "out of memory");
    for (uint64_t i = 0; i < index->n_pairs; i++)
        names[i] = (span){w->data + index->pairs[i].key_at, index->pairs[i].key_length};
    bool is_unique = check_unique(w, names, index->n_pairs, "keys");
    for (uint64_t i = 0; is_unique && i < index->n_tensors; i++)
        names[i] = (span){w->data + index->tensors[i].name_at, index->tensors[i].name_length};
    is_unique = is_unique && check_unique(w, names, index->n_tensors, "tensors");
    free(names);
    return is_unique;
}

static uint64_t padded(uint64_t n, uint64_t alignment) {
    return (n + alignment - 1) & ~(alignment - 1);
}

static bool place_tensors(walk * w) {
    pg_gguf_index * index = w->index;
    uint64_t start = index->n_tensors ? padded(w->at, index->alignment) : w->at;
    uint64_t expected = 0;
    index->data_end = start;
    for (uint64_t i = 0; i < index->n_tensors; i++) {
        pg_gguf_tensor * tensor = &index->tensors[i];
        uint64_t offset = tensor->data_at;
        enter_named(w, tensor->name_at, tensor->name_length);
        if (offset % index->alignment)
            return fail(w, "offset %" PRIu64 " is no multiple of the alignment, %" PRIu32, offset, index->alignment);
        if (offset != expected)
            return fail(w, "offset %" PRIu64 ", where the tensors before it end at %" PRIu64, offset, expected);
        if (start > w->size || offset > w->size - start || tensor->n_bytes > w->size - start - offset)
            return fail(w, "its %" PRIu64 " bytes from byte %" PRIu64 " on reach past the file's end at %" PRIu64
                        ": it was cut short; get it again", tensor->n_bytes, start + offset, w->size);
        tensor->data_at = start + offset;
        index->data_end = tensor->data_at + tensor->n_bytes;
        expected = padded(offset + tensor->n_bytes, index->alignment);
    }
    return true;
}

bool pg_gguf_check(const uint8_t * data, size_t size, pg_gguf_index * index) {
    walk w = {data, size, 0, index};
    index->alignment = GGUF_DEFAULT_ALIGNMENT;
    if (!check_header(&w))
        return false;
    for (uint64_t i = 0; i < index->n_pairs; i++)
        if (!read_pair(&w, i))
            return false;
    for (uint64_t i = 0; i < index->n_tensors; i++)
        if (!read_tensor(&w, i))
            return false;
    return check_names_unique(&w) && place_tensors(&w);
}

void pg_gguf_index_free(pg_gguf_index * index) {
    free(index->pairs);
    free(index->tensors);
    index->pairs = NULL;
    index->tensors = NULL;
}
