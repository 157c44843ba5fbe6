#pragma once
// Builds the datasets of a split from prefixes, weights and the number of samples requested, by Megatron-LM's rules.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tera/config/setup.h"
#include "tera/data/data_split.h"
#include "tera/data/dataset.h"
#include "tera/data/indexed/indexed_dataset.h"

namespace tera {

struct IndexedSplit {
  DataSplit split = DataSplit::train;
  BlendShape blend;
  double begin = 0, end = 1;            // the part of every prefix's sequences that belongs to the split
  std::optional<std::int64_t> samples;  // requested number; none: each sample once
  bool lone_prefix_is_plain = false;    // its weight is ignored, as where each split has its own paths
};

class IndexedBuilder {
 public:
  struct Options {
    std::int64_t seq_length = 0, vocab_size = 0;
    std::uint32_t seed = 0;
    bool add_extra_token = true, drop_last_partial_validation = true;
    double surplus = 0.005;  // a blend builds this fraction more than it plans to use
    std::string cache_path;  // a folder, or empty
  };
  explicit IndexedBuilder(Options options) : options_(std::move(options)) {}

  // None if the split has no width or no prefixes.
  std::unique_ptr<Dataset> build(const IndexedSplit& split);

  // The sum over all prefixes opened so far.
  std::int64_t tokens() const;
  std::int64_t documents() const;
  // The length of the longest sequence of the files (what `tera preprocess` makes of a document); none where one has at
  // least so many tokens, or where there are too many sequences to look at all.
  std::optional<std::int64_t> longest_below(std::int64_t tokens) const;

 private:
  std::shared_ptr<const IndexedDataset> open(const std::string& prefix);
  std::unique_ptr<Dataset> plain(const IndexedSplit& split, const std::string& prefix,
                                 std::optional<std::int64_t> samples);
  std::unique_ptr<Dataset> weighted(const IndexedSplit& split);
  std::unique_ptr<Dataset> unweighted(const IndexedSplit& split);

  Options options_;
  std::map<std::string, std::shared_ptr<const IndexedDataset>> opened_;
};

// Where the three splits begin and end, as fractions of the data: [0, train, train + valid, train + valid + test].
std::array<double, 4> split_bounds(const SplitShape& split);

}  // namespace tera
