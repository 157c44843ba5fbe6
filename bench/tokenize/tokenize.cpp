// How fast text becomes ids: one JSON string per line of {"text": ...} in, ids out; prints seconds and counts.

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tera/base/error.h"
#include "tera/tokenizer/bpe_model.h"

namespace {

// Processor time of this thread, so that others on the machine disturb little.
struct Clock {
  using time_point = double;
  static double now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
};

double seconds_since(Clock::time_point start) { return Clock::now() - start; }

tera::BpeData read_model(const nlohmann::json& file) {
  const nlohmann::json& model = file.at("model");
  tera::BpeData data;
  const nlohmann::json& vocab = model.at("vocab");
  for (const auto& [token, id] : vocab.items()) {
    const auto at = id.get<std::size_t>();
    if (data.tokens.size() <= at) data.tokens.resize(at + 1);
    data.tokens[at] = token;
  }
  for (const nlohmann::json& merge : model.at("merges")) {
    std::string left, right;
    if (merge.is_array()) {
      left = merge[0], right = merge[1];
    } else {
      const auto text = merge.get<std::string>();
      left = text.substr(0, text.find(' '));
      right = text.substr(text.find(' ') + 1);
    }
    data.merges.emplace_back(vocab.at(left).get<int>(), vocab.at(right).get<int>());
  }
  const auto flag = [&](const char* name) {
    return model.contains(name) && model.at(name).is_boolean() && model.at(name).get<bool>();
  };
  data.ignore_merges = flag("ignore_merges");
  data.byte_fallback = flag("byte_fallback");
  data.fuse_unk = flag("fuse_unk");
  if (model.contains("unk_token") && model.at("unk_token").is_string())
    data.unk = vocab.at(model.at("unk_token").get<std::string>()).get<int>();
  data.byte_level = !data.byte_fallback;
  return data;
}

tera::SplitPattern pattern_of(const nlohmann::json& file) {
  const nlohmann::json& steps = file.at("pre_tokenizer");
  if (steps.at("type") == "ByteLevel") return tera::SplitPattern::gpt2;
  std::vector<std::string> regexes;
  for (const nlohmann::json& step : steps.at("pretokenizers"))
    if (step.at("type") == "Split") regexes.push_back(step.at("pattern").at("Regex"));
  const auto pattern = tera::known_split_pattern(regexes);
  tera::require_user(pattern.has_value(), "the pattern of this file is not one of those known");
  return *pattern;
}

std::vector<std::string> read_texts(const char* path) {
  std::ifstream file(path);
  std::vector<std::string> texts;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json value = nlohmann::json::parse(line);
    texts.push_back(value.is_string() ? value.get<std::string>() : value.at("text").get<std::string>());
  }
  return texts;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: tokenize_bench TOKENIZER.json TEXTS.jsonl [IDS]\n");
    return 2;
  }
  const std::vector<std::string> texts = read_texts(argv[2]);
  std::size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  const nlohmann::json file = nlohmann::json::parse(std::ifstream(argv[1]));
  const tera::BpeData data = read_model(file);

  const auto start = Clock::now();
  const tera::BpeModel model(data);
  const double load = seconds_since(start);
  std::unique_ptr<tera::WordEncoder> encoder;
  std::unique_ptr<tera::SpacedEncoder> spaced;
  if (data.byte_level)
    encoder = model.make_text_encoder(pattern_of(file));
  else
    spaced = model.make_spaced_encoder({});
  std::vector<std::int32_t> ids;
  std::vector<std::size_t> ends;
  ids.reserve(bytes / 2);
  const auto begin = Clock::now();
  for (const std::string& text : texts) {
    if (encoder)
      encoder->encode(text, ids);
    else
      spaced->encode(text, true, ids);
    ends.push_back(ids.size());
  }
  const double encode = seconds_since(begin);
  fmt::print("{{\"load_s\": {:.3f}, \"encode_s\": {:.4f}, \"bytes\": {}, \"ids\": {}, \"MB_per_s\": {:.1f}}}\n", load,
             encode, bytes, ids.size(), double(bytes) / 1e6 / encode);
  if (argc > 3) {
    std::ofstream out(argv[3], std::ios::binary);
    out.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * sizeof(ids[0])));
    std::ofstream out2(std::string(argv[3]) + ".ends", std::ios::binary);
    out2.write(reinterpret_cast<const char*>(ends.data()), static_cast<std::streamsize>(ends.size() * sizeof(ends[0])));
  }
  return 0;
}
