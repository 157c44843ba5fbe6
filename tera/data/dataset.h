#pragma once
// Samples of training text, found by one integer. Reading a sample does not allocate and does not depend on what was
// read before, so any rank can read any sample at any time.

#include <cstdint>
#include <limits>
#include <span>

#include "tera/base/rng.h"

namespace tera {

class Dataset {
 public:
  virtual ~Dataset() = default;
  // Samples in one epoch. Indices run on past it: the next epoch has the same samples, in another order unless the
  // dataset says otherwise.
  virtual std::int64_t samples() const = 0;
  // The ids of sample `index`: one more than a sequence has, inputs being all but the last and targets all but the
  // first. Negative where there is no token.
  virtual void sample(std::int64_t index, std::span<std::int32_t> tokens) const = 0;
  // Whether samples may hold such negative ids, or targets that do not count.
  virtual bool has_gaps() const { return false; }

  // Marks say of each id whether it counts as a target (the loss mask), and whether a document begins with it. A
  // dataset may have none: then all ids count, and documents end with the tokenizer's end of document.
  static constexpr std::uint8_t counts = 1, begins = 2;
  virtual bool has_marks() const { return false; }
  virtual void marks(std::int64_t /*index*/, std::span<std::uint8_t> /*marks*/) const {}
};

// Mock data, a pure function of (seed, index): ids follow a rough Zipf law, and every other one is decided by its
// predecessor, so that a model has something to learn. Parts of one seed have the same rules and different samples:
// evaluate on another part, not on another seed.
class MockDataset final : public Dataset {
 public:
  MockDataset(std::int64_t vocab_size, std::uint64_t seed, std::uint64_t part = 0);
  std::int64_t samples() const override { return std::numeric_limits<std::int64_t>::max(); }
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override;

 private:
  std::int32_t skewed_id(std::uint32_t octave_bits, std::uint32_t place_bits) const;

  std::uint32_t vocab_size_;
  std::uint32_t octaves_;  // ids in [2^k - 1, 2^(k+1) - 1) are octave k
  std::uint64_t part_;
  RngKey draws_, followers_;
};

}  // namespace tera
