// The speed of tokenization on one thread: reads lines of {"text": ...}, encodes them once, prints one JSON line.
// bench/tokenize runs it beside other tokenizers.

#include <fmt/core.h>
#include <time.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tera/base/error.h"
#include "tera/tokenizer/bpe/tiktoken.h"
#include "tera/tokenizer/huggingface/hugging_face.h"

namespace {

// Processor time of this thread, so that other work on the machine disturbs less.
double seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::vector<std::string> read_texts(const char* path) {
  std::ifstream file(path);
  tera::require_user(file.good(), "{} cannot be read", path);
  std::vector<std::string> texts;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json value = nlohmann::json::parse(line);
    texts.push_back(value.is_string() ? value.get<std::string>() : value.at("text").get<std::string>());
  }
  return texts;
}

std::unique_ptr<tera::Tokenizer> load(const std::string& path, const char* pattern) {
  if (pattern != nullptr) return tera::make_tiktoken({.model = path, .pattern = pattern});
  return tera::HuggingFaceTokenizer::load(path, false);
}

void write_numbers(const std::string& path, const void* numbers, std::size_t bytes) {
  std::ofstream(path, std::ios::binary).write(static_cast<const char*>(numbers), static_cast<std::streamsize>(bytes));
}

void measure(const char* model, const char* text_file, const char* output, const char* pattern) {
  const std::vector<std::string> texts = read_texts(text_file);
  std::size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  const double start = seconds();
  const auto tokenizer = load(model, pattern);
  const double loaded = seconds();
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> ends{0};
  const auto encoder = tokenizer->make_encoder();
  for (const std::string& text : texts) {
    encoder->encode(text, ids);
    ends.push_back(static_cast<std::int64_t>(ids.size()));
  }
  const double encoded = seconds();
  fmt::print("{{\"load_s\": {:.4f}, \"encode_s\": {:.4f}, \"bytes\": {}, \"ids\": {}, \"MB_per_s\": {:.1f}}}\n",
             loaded - start, encoded - loaded, bytes, ids.size(),
             static_cast<double>(bytes) / 1e6 / (encoded - loaded));
  if (output == nullptr) return;
  write_numbers(std::string(output) + ".ids", ids.data(), ids.size() * sizeof(ids[0]));
  write_numbers(std::string(output) + ".ends", ends.data(), ends.size() * sizeof(ends[0]));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: tokenize_bench TOKENIZER.json|VOCABULARY TEXTS.jsonl [OUTPUT [TIKTOKEN-PATTERN]]\n");
    return 2;
  }
  try {
    measure(argv[1], argv[2], argc > 3 ? argv[3] : nullptr, argc > 4 ? argv[4] : nullptr);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
