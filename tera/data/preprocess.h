#pragma once
// JSONL to PREFIX_<key>_document.bin/.idx, byte for byte as Megatron-LM's preprocess_data.py writes them: one document
// per line, in the order of the lines, whatever the number of threads.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tera/data/token_type.h"
#include "tera/tokenizer/tokenizer.h"

namespace tera {

struct PreprocessOptions {
  std::vector<std::string> inputs;  // files, folders and patterns (sorted), "-" for standard input
  std::string output_prefix;
  std::vector<std::string> keys{"text"};
  bool append_eod = false;      // to documents that have tokens
  bool skip_bad_lines = false;  // else the first one is an error
  int workers = 1;
  std::size_t block_bytes = std::size_t{1} << 20;  // of lines that a worker takes at a time
  std::size_t max_line_bytes = std::size_t{128} << 20;
};

struct PreprocessProgress {
  std::int64_t lines = 0, skipped = 0;
  std::uint64_t text_bytes = 0;                      // of JSONL
  std::uint64_t stored_bytes = 0, stored_total = 0;  // of the input as it is stored; the total is 0 where it is unknown
};

struct PreprocessReport {
  struct Output {
    std::string prefix;
    TokenType type = TokenType::u16;
    std::int64_t documents = 0, sequences = 0, tokens = 0;
  };
  PreprocessProgress progress;
  std::vector<Output> outputs;  // one for each key
};

// What happens meanwhile, called by the thread that called preprocess().
struct PreprocessEvents {
  std::function<void(const PreprocessProgress&)> progress;  // several times a second; may throw to give up
  std::function<void(const std::string&)> skipped;          // the first lines that are left out, and why
  std::function<void(const std::string&)> replaces;         // prefixes that are there already, before the work begins
};

// If it throws, no output is there.
PreprocessReport preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer,
                            const PreprocessEvents& events = {});

}  // namespace tera
