#pragma once
// Plain text files as training data: tokenized once into memory, cut by tokens into train, valid and test, and read as
// windows of seq_length + 1 ids (neighbours share one) in an order shuffled anew each pass.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tera/config/setup.h"
#include "tera/data/data_split.h"
#include "tera/data/dataset.h"
#include "tera/data/permutation.h"
#include "tera/tokenizer/tokenizer.h"

namespace tera {

// All documents, each followed by the tokenizer's end of document.
class TextCorpus {
 public:
  struct Options {
    std::vector<std::string> paths;
    std::int64_t vocab_size = 0;  // the model's; every id must be below it
    SplitShape split;             // fractions of the tokens; the default trains on all
  };
  TextCorpus(const Options& options, const Tokenizer& tokenizer);

  std::int64_t documents() const { return documents_; }
  std::int64_t tokens() const { return static_cast<std::int64_t>(tokens_.size()); }
  std::span<const std::int32_t> part(DataSplit split) const;

 private:
  std::vector<std::int32_t> tokens_;
  std::array<std::int64_t, 4> bounds_{};  // bounds of the three splits, in tokens
  std::int64_t documents_ = 0;
};

// Windows over one split of a corpus, which it keeps alive.
class TextDataset final : public Dataset {
 public:
  struct Options {
    DataSplit split = DataSplit::train;
    std::int64_t seq_length = 0;
    std::uint64_t seed = 0;
  };
  TextDataset(std::shared_ptr<const TextCorpus> corpus, const Options& options);  // UserError if no window fits
  std::int64_t samples() const override { return samples_; }
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override;

 private:
  std::shared_ptr<const TextCorpus> corpus_;
  std::span<const std::int32_t> tokens_;
  std::int64_t seq_length_, samples_;
  Permutation order_;
};

}  // namespace tera
