#pragma once
// A `tokenizer.json` as data: its large lists (vocabulary, merges) read straight into arrays, the rest as JSON.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tera/tokenizer/bpe/token_index.h"

namespace tera {

constexpr std::int64_t max_token_ids = 10'000'000;  // so that a wrong id cannot fill the memory

struct TokenizerFile {
  std::string name;      // the path, for messages
  nlohmann::json parts;  // all but model.vocab and model.merges; every part that a file must have is there
  // Tokens of the model by id; empty: no token has this id.
  std::vector<std::string> tokens;
  std::vector<double> scores;                                 // scores of Unigram, by id
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  // merges of BPE, ids of both halves
  std::size_t vocab_count = 0;                                // tokens, which are fewer than ids where there are holes

  std::string path_of(std::string_view part) const { return name + ": " + std::string(part); }
};

TokenizerFile read_tokenizer_file(const std::filesystem::path& path);

// {"token": id, ...} as a file of its own.
std::vector<std::string> read_vocab_json(const std::filesystem::path& path);

// Lines "a b" of a merges.txt, the first of which may say its version.
std::vector<std::pair<std::int32_t, std::int32_t>> read_merges_text(const std::filesystem::path& path,
                                                                    const TokenIndex& ids);

}  // namespace tera
