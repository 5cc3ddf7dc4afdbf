// What llama.cpp computes for given tokens: all logits, or a greedy continuation.
//
//   llama_logits MODEL OUT.f32 [options] TOKEN...      logits of every position: n_tokens x n_vocab float32, row-major
//   llama_logits MODEL OUT.txt --greedy N [options] TOKEN...
//                                                      a line per sequence: N times "id:gap", where gap is how far
//                                                      the chosen logit lies above the second best
// Options
//   --seqs FILE      take the tokens from FILE, one sequence a line, each evaluated alone in an emptied cache
//   --chunk N        tokens a decode call (default: the whole sequence; 1: the token-by-token path)
//   --rows A,B,...   write only these positions (negative: from the end)
//   --fa on|off      flash attention (default off)      --ctk, --ctv TYPE   types of the K and V caches (default f32)
//   --threads N      default 2                          --ctx N             cache cells (default: what is needed)
//   --repack on|off  repacked CPU weights (default on, as llama.cpp itself)
//
// CPU only. llama.cpp takes a quantised V only with flash attention, and that turns F32 K and V into F16.
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

using Sequence = std::vector<llama_token>;

struct Options {
    std::string model, out;
    std::vector<Sequence> seqs;
    std::vector<int> rows;
    int chunk = 0, n_greedy = 0, n_threads = 2, n_ctx = 0;
    bool flash = false, repack = true;
    ggml_type type_k = GGML_TYPE_F32, type_v = GGML_TYPE_F32;
};

static ggml_type cache_type(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char * known = ggml_type_name((ggml_type) i);
        if (known && name == known) return (ggml_type) i;
    }
    throw std::runtime_error("no type called " + name);
}

static bool is_on(const std::string & value) {
    if (value != "on" && value != "off") throw std::runtime_error("on or off, not " + value);
    return value == "on";
}

template <typename T> static std::vector<T> numbers(std::string text) {
    std::replace(text.begin(), text.end(), ',', ' ');
    std::istringstream in(text);
    std::vector<T> found;
    for (long n; in >> n;) found.push_back((T) n);
    return found;
}

static Options parse(const std::vector<std::string> & args) {
    Options o;
    std::vector<std::string> plain;
    Sequence tokens;
    for (size_t i = 0; i < args.size(); i++) {
        if (args[i].rfind("--", 0) != 0) { plain.push_back(args[i]); continue; }
        if (i + 1 == args.size()) throw std::runtime_error(args[i] + " needs a value");
        const std::string & name = args[i], & value = args[++i];
        if      (name == "--chunk")   o.chunk     = std::stoi(value);
        else if (name == "--greedy")  o.n_greedy  = std::stoi(value);
        else if (name == "--threads") o.n_threads = std::stoi(value);
        else if (name == "--ctx")     o.n_ctx     = std::stoi(value);
        else if (name == "--rows")    o.rows      = numbers<int>(value);
        else if (name == "--fa")      o.flash     = is_on(value);
        else if (name == "--repack")  o.repack    = is_on(value);
        else if (name == "--ctk")     o.type_k    = cache_type(value);
        else if (name == "--ctv")     o.type_v    = cache_type(value);
        else if (name == "--seqs") {
            std::ifstream file(value);
            if (!file) throw std::runtime_error("cannot read " + value);
            for (std::string line; std::getline(file, line);) {
                if (Sequence s = numbers<llama_token>(line); !s.empty()) o.seqs.push_back(s);
            }
        }
        else throw std::runtime_error("no option " + name);
    }
    if (plain.size() < 2) throw std::runtime_error("usage: llama_logits MODEL OUT [options] TOKEN...");
    o.model = plain[0];
    o.out   = plain[1];
    for (size_t i = 2; i < plain.size(); i++) tokens.push_back(std::stoi(plain[i]));
    if (!tokens.empty()) o.seqs.push_back(tokens);
    if (o.seqs.empty()) throw std::runtime_error("no tokens");
    return o;
}

class Evaluator {
public:
    explicit Evaluator(const Options & options) : o(options) {
        size_t longest = 0;
        for (const auto & s : o.seqs) longest = std::max(longest, s.size());
        auto mp = llama_model_default_params();
        mp.n_gpu_layers    = 0;
        mp.use_extra_bufts = o.repack;
        model = llama_model_load_from_file(o.model.c_str(), mp);
        if (!model) throw std::runtime_error("cannot load " + o.model);
        n_batch = o.chunk ? o.chunk : (int) longest;
        auto cp = llama_context_default_params();
        cp.n_ctx           = o.n_ctx ? o.n_ctx : (uint32_t) (longest + o.n_greedy);
        cp.n_batch         = cp.n_ubatch = std::max(n_batch, 32);
        cp.n_threads       = cp.n_threads_batch = o.n_threads;
        cp.type_k          = o.type_k;
        cp.type_v          = o.type_v;
        cp.flash_attn_type = o.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
        cp.swa_full        = true;
        ctx = llama_init_from_model(model, cp);
        if (!ctx) throw std::runtime_error("cannot make a context");
        n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
        batch   = llama_batch_init(std::max(n_batch, 1), 0, 1);
    }

    ~Evaluator() {
        llama_batch_free(batch);
        llama_free(ctx);
        llama_model_free(model);
    }

    void restart() {
        llama_memory_clear(llama_get_memory(ctx), true);
        n_past = 0;
    }

    // Evaluates the tokens and hands each position's logits to `use`.
    template <typename F> void decode(const Sequence & tokens, F use) {
        for (size_t begin = 0; begin < tokens.size(); begin += batch.n_tokens) {
            batch.n_tokens = (int) std::min<size_t>(n_batch, tokens.size() - begin);
            for (int i = 0; i < batch.n_tokens; i++) {
                batch.token[i]     = tokens[begin + i];
                batch.pos[i]       = n_past + i;
                batch.n_seq_id[i]  = 1;
                batch.seq_id[i][0] = 0;
                batch.logits[i]    = 1;
            }
            if (llama_decode(ctx, batch)) throw std::runtime_error("llama_decode failed");
            for (int i = 0; i < batch.n_tokens; i++) use(n_past + i, llama_get_logits_ith(ctx, i));
            n_past += batch.n_tokens;
        }
    }

    int n_vocab = 0;

private:
    const Options & o;
    llama_model * model = nullptr;
    llama_context * ctx = nullptr;
    llama_batch batch{};
    int n_batch = 0, n_past = 0;
};

static void write_logits(const Options & o, Evaluator & e, FILE * out) {
    for (const auto & seq : o.seqs) {
        std::map<int, int> wanted;
        for (int row : o.rows) wanted[row < 0 ? row + (int) seq.size() : row] = 1;
        e.restart();
        e.decode(seq, [&](int pos, const float * logits) {
            if (wanted.empty() || wanted.count(pos)) fwrite(logits, sizeof(float), e.n_vocab, out);
        });
    }
}

static void write_greedy(const Options & o, Evaluator & e, FILE * out) {
    for (const auto & seq : o.seqs) {
        llama_token best = 0;
        float gap = 0;
        const auto choose = [&](int, const float * logits) {
            best = (llama_token) (std::max_element(logits, logits + e.n_vocab) - logits);
            float second = -INFINITY;
            for (int i = 0; i < e.n_vocab; i++) if (i != best) second = std::max(second, logits[i]);
            gap = logits[best] - second;
        };
        e.restart();
        e.decode(seq, choose);
        for (int i = 0; i < o.n_greedy; i++) {
            fprintf(out, "%s%d:%.6g", i ? " " : "", best, gap);
            if (i + 1 < o.n_greedy) e.decode({best}, choose);
        }
        fputc('\n', out);
    }
}

int main(int argc, char ** argv) try {
    const Options o = parse({argv + 1, argv + argc});
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
    }, nullptr);
    llama_backend_init();
    Evaluator e(o);
    FILE * out = fopen(o.out.c_str(), "wb");
    if (!out) throw std::runtime_error("cannot write " + o.out);
    (o.n_greedy ? write_greedy : write_logits)(o, e, out);
    return fclose(out) ? 1 : 0;
} catch (const std::exception & problem) {
    fprintf(stderr, "llama_logits: %s\n", problem.what());
    return 2;
}
