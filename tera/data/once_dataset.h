#pragma once
// A dataset that is read once: past its last sample there are no tokens, so batches that reach over the end count no
// token twice.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "tera/data/dataset.h"

namespace tera {

class OnceDataset final : public Dataset {
 public:
  explicit OnceDataset(std::unique_ptr<Dataset> all) : all_(std::move(all)) {}
  std::int64_t samples() const override { return all_->samples(); }
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override {
    if (index < all_->samples())
      all_->sample(index, tokens);
    else
      std::ranges::fill(tokens, -1);
  }
  bool has_gaps() const override { return true; }
  bool has_marks() const override { return all_->has_marks(); }
  void marks(std::int64_t index, std::span<std::uint8_t> marks) const override {
    if (index < all_->samples())
      all_->marks(index, marks);
    else
      std::ranges::fill(marks, std::uint8_t{0});
  }

 private:
  std::unique_ptr<Dataset> all_;
};

}  // namespace tera
