// Runs the products' own source on a processor: `products TYPE COLUMNS WEIGHTS ROWS KIND PROCESSORS`, KIND of normed,
// added, gate, bias, residual, joined by -. Prints the squared error over the squared size of the right results, and
// the same for the sum of x and addend.

#include "nibble_blocks.cuh"
#include "product_launch.cuh"
#include "q6_k_blocks.cuh"

#include <cstdio>
#include <random>
#include <string>
#include <vector>

static std::mt19937 generator(1);

static std::vector<float> random_floats(size_t n, float size, float centre = 0) {
    std::normal_distribution<float> normal(centre, size);
    std::vector<float> v(n);
    for (float & f : v) {
        f = normal(generator);
    }
    return v;
}

struct block_shape {
    int weights, bytes;
};

static bool is_nibbles(const std::string & type) {
    return type == "q4_0" || type == "q4_1" || type == "mxfp4";
}

static block_shape shape_of(const std::string & type) {
    if (is_nibbles(type)) {
        return {32, type == "q4_0" ? 18 : type == "q4_1" ? 20 : 17};
    }
    return type == "q8_0" ? block_shape{32, 34} : block_shape{256, type == "q4_k" ? 144 : type == "q5_k" ? 176 : 210};
}

static float half_of(const uint8_t * p) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(p[0] | p[1] << 8)));
}

static void put_half(uint8_t * p, float v) {
    const unsigned short bits = __half_as_ushort(__float2half(v));
    p[0] = static_cast<uint8_t>(bits);
    p[1] = static_cast<uint8_t>(bits >> 8);
}

// Random blocks with scales near 0.01.
static std::vector<uint8_t> random_rows(const std::string & type, size_t n_rows, int n_weights) {
    const block_shape shape = shape_of(type);
    std::vector<uint8_t> rows(n_rows * (n_weights / shape.weights) * shape.bytes + 16);
    for (uint8_t & byte : rows) {
        byte = static_cast<uint8_t>(generator());
    }
    std::uniform_real_distribution<float> scale(0.005f, 0.02f);
    for (uint8_t * block = rows.data(); block + shape.bytes <= rows.data() + rows.size() - 16; block += shape.bytes) {
        if (type == "mxfp4") {
            *block = static_cast<uint8_t>(118 + generator() % 4);
            continue;
        }
        put_half(block + (type == "q6_k" ? 208 : 0), scale(generator));
        if (type == "q4_k" || type == "q5_k" || type == "q4_1") {
            put_half(block + 2, scale(generator));
        }
    }
    return rows;
}

static double k_value(const uint8_t * b, int e, bool has_fifth) {
    const uint8_t * s = b + 4;
    const int j = e / 32, l = e % 32;
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    const int byte = b[(has_fifth ? 48 : 16) + j / 2 * 32 + l];
    const int q = (j % 2 ? byte >> 4 : byte & 15) | (has_fifth ? (b[16 + l] >> j & 1) << 4 : 0);
    return static_cast<double>(half_of(b)) * scale * q - static_cast<double>(half_of(b + 2)) * minimum;
}

static double value(const std::string & type, const uint8_t * row, int k) {
    const block_shape shape = shape_of(type);
    const uint8_t * b = row + k / shape.weights * shape.bytes;
    const int e = k % shape.weights;
    if (type == "q8_0") {
        return static_cast<double>(half_of(b)) * static_cast<int8_t>(b[2 + e]);
    }
    if (is_nibbles(type)) {
        static const int DOUBLED[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
        const int byte = b[shape.bytes - 16 + e % 16], nibble = e < 16 ? byte & 15 : byte >> 4;
        return type == "mxfp4" ? std::ldexp(DOUBLED[nibble], b[0] - 128) : static_cast<double>(half_of(b)) * nibble;
    }
    if (type != "q6_k") {
        return k_value(b, e, type == "q5_k");
    }
    const int half = e / 128, j = e % 128 / 32, l = e % 32;
    const int low = b[64 * half + j % 2 * 32 + l] >> (j < 2 ? 0 : 4) & 15;
    const int high = b[128 + 32 * half + l] >> 2 * j & 3;
    return static_cast<double>(half_of(b + 208)) * static_cast<int8_t>(b[192 + 8 * half + 2 * j + l / 16]) * ((low | high << 4) - 32);
}

// As ggml rounds activations for these products.
static std::vector<double> rounded(const std::vector<float> & x) {
    std::vector<double> out(x.size());
    for (size_t start = 0; start < x.size(); start += 32) {
        float largest = 0;
        for (int i = 0; i < 32; i++) {
            largest = std::max(largest, std::fabs(x[start + i]));
        }
        const float d = largest / 127, kept = __half2float(__float2half(d));
        for (int i = 0; i < 32; i++) {
            out[start + i] = d == 0 ? 0 : kept * std::round(x[start + i] / d);
        }
    }
    return out;
}

// What is added once a block of 32: of q4_0 - 8 d, of q4_1 m, times the sum of the activations as float16.
static double offset(const std::string & type, const uint8_t * row, int k, const float * x) {
    if (type != "q4_0" && type != "q4_1") {
        return 0;
    }
    const uint8_t * b = row + k / 32 * shape_of(type).bytes;
    float sum = 0;
    for (int i = 0; i < 32; i++) {
        sum += x[k + i];
    }
    return static_cast<double>(__half2float(__float2half(sum))) * (type == "q4_0" ? -8 * half_of(b) : half_of(b + 2));
}

struct error_sum {
    double wrong = 0, size = 0;
    void add(double ours, double right) {
        wrong += (ours - right) * (ours - right);
        size += right * right;
        wrong = std::isnan(ours) ? NAN : wrong;
    }
    double share() const { return wrong / size; }
};

static cudaError_t launch(const std::string & type, products & p, const product_card & card) {
    if (is_nibbles(type)) {
        return type == "q4_0" ? launch_columns<q4_0, true>(p, card, nullptr)
               : type == "q4_1" ? launch_columns<q4_1, true>(p, card, nullptr) : launch_columns<mxfp4, true>(p, card, nullptr);
    }
    if (type == "q8_0") {
        return p.n_weights % UNIT_WEIGHTS ? launch_columns<q8_0, true>(p, card, nullptr) : launch_columns<q8_0, false>(p, card, nullptr);
    }
    return type == "q4_k" ? launch_columns<q4_k, false>(p, card, nullptr)
           : type == "q5_k" ? launch_columns<q5_k, false>(p, card, nullptr) : launch_columns<q6_k, true>(p, card, nullptr);
}

int main(int, char ** argument) {
    const std::string type = argument[1], kind = argument[5];
    const int n = std::stoi(argument[2]), k = std::stoi(argument[3]), n_rows = std::stoi(argument[4]);
    const auto has = [&](const char * word) { return kind.find(word) != std::string::npos; };
    const bool is_gated = has("gate");
    const size_t row_bytes = k / shape_of(type).weights * shape_of(type).bytes, n_values = static_cast<size_t>(n) * k;
    std::vector<uint8_t> held[2] = {random_rows(type, n_rows, k), random_rows(type, n_rows, k)};
    std::vector<float> x = random_floats(n_values, 2), addend = random_floats(n_values, 1);
    const std::vector<float> weight = random_floats(k, 0.1f, 1), bias = random_floats(n_rows, 1);
    std::vector<float> residual = random_floats(static_cast<size_t>(n) * n_rows, 5);

    std::vector<float> input = x;
    error_sum sums, results;
    for (size_t i = 0; i < n_values && has("added"); i++) {
        input[i] += addend[i];
    }
    const std::vector<float> right_sum = input;
    for (int c = 0; c < n && has("normed"); c++) {
        double squares = 0;
        for (int i = 0; i < k; i++) {
            squares += static_cast<double>(input[c * k + i]) * input[c * k + i];
        }
        for (int i = 0; i < k; i++) {
            input[c * k + i] *= static_cast<float>(1 / std::sqrt(squares / k + 1e-5)) * weight[i];
        }
    }
    const std::vector<double> q = rounded(input);
    std::vector<double> right(static_cast<size_t>(n) * n_rows);
    for (int c = 0; c < n; c++) {
        for (int r = 0; r < n_rows; r++) {
            double dot[2] = {has("bias") ? bias[r] : 0, 0};
            for (int m = 0; m <= is_gated; m++) {
                for (int i = 0; i < k; i++) {
                    const uint8_t * row = held[m].data() + r * row_bytes;
                    dot[m] += q[c * k + i] * value(type, row, i) + (i % 32 ? 0 : offset(type, row, i, input.data() + c * k));
                }
            }
            right[c * n_rows + r] = is_gated ? dot[0] / (1 + std::exp(-dot[0])) * dot[1] : dot[0] + (has("residual") ? residual[c * n_rows + r] : 0);
        }
    }

    unsigned n_read = 0;
    products p = {};
    p.in = {x.data(), has("added") ? addend.data() : nullptr, has("added") ? x.data() : nullptr, has("normed") ? weight.data() : nullptr,
            k, k, k, &n_read, 1e-5f, has("normed")};
    p.row_bytes = static_cast<int64_t>(row_bytes);
    p.n_matrices = is_gated ? 2 : 1;
    p.n_weights = k;
    p.n_columns = n;
    p.gate = is_gated ? GATE_SWIGLU : GATE_NONE;
    for (int m = 0; m <= is_gated; m++) {
        p.matrix[m].data = reinterpret_cast<const char *>(held[m].data());
        p.matrix[m].n_rows = n_rows;
        p.matrix[m].out_stride = p.matrix[m].residual_stride = n_rows;
    }
    p.matrix[0].bias = has("bias") ? bias.data() : nullptr;
    std::vector<float> out(right.size(), NAN);
    p.matrix[0].out = has("residual") ? residual.data() : out.data();  // in place, as graphs have it
    p.matrix[0].residual = has("residual") ? residual.data() : nullptr;
    if (launch(type, p, {std::stoi(argument[6]), SHARED_BYTES}) != cudaSuccess) {
        puts("not launched");
        return 1;
    }
    for (size_t i = 0; i < right.size(); i++) {
        results.add(p.matrix[0].out[i], right[i]);
    }
    for (size_t i = 0; i < n_values; i++) {
        sums.add(x[i], has("added") ? right_sum[i] : x[i]);
    }
    printf("%.3e %.3e\n", results.share(), sums.share());
}
