#pragma once
// JSONL to PREFIX_<key>_document.bin/.idx, byte for byte as Megatron-LM's preprocess_data.py writes them: one document
// per line, in the order of the lines, whatever the number of threads.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tera/data/indexed/token_type.h"
#include "tera/tokenizer/tokenizer.h"

namespace tera {

struct PreprocessOptions {
  std::vector<std::string> inputs;  // files, folders and patterns (sorted), "-" for standard input
  std::string output_prefix;
  std::vector<std::string> keys{"text"};
  bool append_eod = false;      // an end-of-document token, to documents that have tokens
  bool skip_bad_lines = false;  // otherwise the first one is an error
  int workers = 1;
  std::size_t block_bytes = std::size_t{1} << 20;  // size of the block of lines that a worker takes at a time
  std::size_t max_line_bytes = std::size_t{128} << 20;
};

struct PreprocessProgress {
  std::int64_t lines = 0, skipped = 0;
  std::uint64_t text_bytes = 0;  // bytes of JSONL
  std::uint64_t stored_bytes = 0,
                stored_total = 0;  // bytes of the input before decompression; the total is 0 where it is unknown
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

// Callbacks, called by the thread that called preprocess().
struct PreprocessEvents {
  std::function<void(const PreprocessProgress&)> progress;  // several times a second; may throw to stop
  std::function<void(const std::string&)> skipped;          // a line that is skipped, and why; only for the first ones
  std::function<void(const std::string&)> replaces;         // a prefix that exists already, before the work begins
};

// If it throws, there is no output.
PreprocessReport preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer,
                            const PreprocessEvents& events = {});

}  // namespace tera
