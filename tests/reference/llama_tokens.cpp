// Prints the ids that llama.cpp gives texts, for tests that compare.
//
// Input: records of "PATH BYTES\n" and so many bytes of text; a vocabulary is loaded when the path changes.
// Output: two lines for each text, ids separated by blanks: control tokens parsed, and as text. No BOS, no EOS.

#include "llama.h"

#include <iostream>
#include <string>
#include <vector>

static void print_ids(const llama_vocab * vocab, const std::string & text, bool parse_special) {
    std::vector<llama_token> ids(text.size() + 16);
    const int n = llama_tokenize(vocab, text.data(), (int) text.size(), ids.data(), (int) ids.size(), false, parse_special);
    if (n < 0) {
        std::cerr << "more tokens than bytes\n";
        exit(1);
    }
    for (int i = 0; i < n; ++i) {
        std::cout << (i ? " " : "") << ids[i];
    }
    std::cout << "\n";
}

int main() {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    llama_model * model = nullptr;
    std::string path, loaded;
    size_t n_bytes;
    while (std::cin >> path >> n_bytes) {
        std::cin.get();
        std::string text(n_bytes, '\0');
        std::cin.read(text.data(), (std::streamsize) n_bytes);
        if (path != loaded) {
            llama_model_free(model);
            model = llama_model_load_from_file(path.c_str(), params);
            if (!model) {
                std::cerr << "cannot load " << path << "\n";
                return 1;
            }
            loaded = path;
        }
        print_ids(llama_model_get_vocab(model), text, true);
        print_ids(llama_model_get_vocab(model), text, false);
    }
    llama_model_free(model);
}
