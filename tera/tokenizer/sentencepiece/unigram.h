#pragma once
// Unigram, the model of T5: segments a word into the tokens with the largest sum of scores.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tera/tokenizer/bpe/double_array.h"
#include "tera/tokenizer/word_model.h"

namespace tera {

struct UnigramOptions {
  std::int32_t unk_id = -1;    // negative: none
  bool byte_fallback = false;  // unknown text becomes the tokens <0x00> to <0xFF> of its bytes, if all exist
};

class Unigram final : public WordModel {
 public:
  using Entry = std::pair<std::string_view, double>;  // token, score as the file has it; the id is the index
  Unigram(std::span<const Entry> vocabulary, const UnigramOptions& options);

  std::unique_ptr<WordEncoder> make_encoder() const override;

 private:
  friend class UnigramEncoder;

  DoubleArray tokens_;
  std::vector<double> scores_;
  double unk_score_ = 0;
  std::int32_t unk_id_;
  bool byte_fallback_;
  std::array<std::int32_t, 256> byte_ids_{};
};

}  // namespace tera
