#pragma once
// Samples of an indexed dataset in Megatron-LM's order.

#include <cstdint>
#include <memory>
#include <span>

#include "tera/data/dataset.h"
#include "tera/data/gpt_index.h"
#include "tera/data/index_cache.h"
#include "tera/data/indexed/indexed_dataset.h"

namespace tera {

class GptDataset final : public Dataset {
 public:
  struct Options {
    GptIndexOptions index;
    std::int64_t vocab_size = 0;       // a larger id is an error when it is read
    std::filesystem::path cache_path;  // a folder, or empty
  };
  GptDataset(std::shared_ptr<const IndexedDataset> data, const Options& options);

  // All samples of the epochs, which may be more than was asked for; past them the same order starts over.
  std::int64_t samples() const override { return static_cast<std::int64_t>(index_.view().order.size()); }
  // Without the extra token, and past the end of the data in a partial last sample, ids are -1.
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override;
  bool has_gaps() const override;

 private:
  std::shared_ptr<const IndexedDataset> data_;
  Options options_;
  StoredGptIndex index_;
};

}  // namespace tera
