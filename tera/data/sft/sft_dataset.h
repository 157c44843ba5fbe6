#pragma once
// Supervised fine-tuning (SFT) on conversations, by Megatron-LM's rules: a line of JSON is a sample, its `messages` one
// or several conversations one after the other, of which each begins with a message of the role system. They are
// tokenized once into memory. A sample longer than a sequence is cut, a shorter one has no tokens at its end.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tera/config/sections/dataset.h"
#include "tera/data/dataset.h"
#include "tera/tokenizer/tokenizer.h"

namespace tera {

class SftDataset final : public Dataset {
 public:
  struct Options {
    std::vector<std::string> paths;  // plain, .gz or .zst
    double begin = 0, end = 1;       // the fraction of all lines that belongs to the split
    std::int64_t seq_length = 0, vocab_size = 0;
    ChatFormat format;
  };
  SftDataset(const Options& options, const Tokenizer& tokenizer);

  std::int64_t samples() const override { return std::ssize(begins_) - 1; }
  std::int64_t tokens() const { return std::ssize(ids_); }
  // Samples without targets: they have no answer, or none within a sequence.
  std::int64_t without_target() const { return without_target_; }
  // Past the last line samples start over in the same order.
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override;
  bool has_gaps() const override { return true; }
  bool has_marks() const override { return true; }
  void marks(std::int64_t index, std::span<std::uint8_t> marks) const override;

 private:
  std::pair<std::size_t, std::size_t> range_of(std::int64_t index) const;

  std::vector<std::int32_t> ids_;     // tokens of all lines, none longer than a sequence
  std::vector<std::uint8_t> marks_;   // [ids] loss mask and begins of documents
  std::vector<std::int64_t> begins_;  // [lines+1]
  std::int64_t without_target_ = 0;
};

}  // namespace tera
