#include "tera/data/gpt_index.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "tera/base/error.h"
#include "tera/data/numpy_random.h"

namespace tera {
namespace {

constexpr std::int64_t max_samples = std::numeric_limits<std::uint32_t>::max() - 2;
constexpr std::int64_t max_tokens = std::int64_t{1} << 62;

std::int64_t sum_lengths(PackedArray<std::int32_t> lengths, const GptIndexOptions& options) {
  std::int64_t sum = 0;
  for (std::int64_t i = options.first; i < options.last; ++i) sum += lengths[static_cast<std::size_t>(i)];
  return sum;
}

// A partial last sample is counted by a quotient in single precision, as the original does it.
std::int64_t count_samples(std::int64_t tokens, const GptIndexOptions& options) {
  const std::int64_t usable = tokens - (options.add_extra_token ? 1 : 0);
  if (usable < 0) return 0;
  if (options.drop_last_partial) return usable / options.seq_length;
  return static_cast<std::int64_t>(std::ceil(static_cast<float>(usable) / static_cast<float>(options.seq_length)));
}

std::int64_t full_samples(std::int64_t tokens, const GptIndexOptions& options) {
  return (tokens - (options.add_extra_token ? 1 : 0)) / options.seq_length;
}

// The document order of some epochs, shuffled as one.
void add_epochs(std::int64_t epochs, const GptIndexOptions& options, NumpyRandom& random,
                std::vector<std::int32_t>& documents) {
  const std::size_t begin = documents.size();
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch)
    for (std::int64_t i = options.first; i < options.last; ++i) documents.push_back(static_cast<std::int32_t>(i));
  random.shuffle(std::span(documents).subspan(begin));
}

// Walks the stream of tokens from the start of one sample to the start of the next.
class SampleWalk {
 public:
  SampleWalk(PackedArray<std::int32_t> lengths, std::span<const std::int32_t> documents, const GptIndexOptions& options)
      : lengths_(lengths),
        documents_(documents),
        extra_(options.add_extra_token ? 1 : 0),
        tokens_(options.seq_length + extra_) {}

  std::int64_t position() const { return static_cast<std::int64_t>(position_); }
  std::int32_t offset() const { return static_cast<std::int32_t>(offset_); }

  void next() {
    std::int64_t remaining = tokens_;
    while (true) {
      const std::int64_t length = lengths_[static_cast<std::size_t>(documents_[position_])];
      if (remaining <= length - offset_) {
        offset_ += remaining - extra_;
        return;
      }
      if (position_ + 1 == documents_.size()) {  // a last sample that is short
        offset_ = length - extra_;
        return;
      }
      remaining -= length - offset_;
      offset_ = 0;
      ++position_;
    }
  }

 private:
  PackedArray<std::int32_t> lengths_;
  std::span<const std::int32_t> documents_;
  std::int64_t extra_, tokens_;
  std::size_t position_ = 0;
  std::int64_t offset_ = 0;
};

void add_starts(PackedArray<std::int32_t> lengths, const GptIndexOptions& options, std::int64_t samples,
                GptIndexArrays& index) {
  index.position.reserve(static_cast<std::size_t>(samples) + 1);
  index.offset.reserve(static_cast<std::size_t>(samples) + 1);
  SampleWalk walk(lengths, index.documents, options);
  for (std::int64_t i = 0;; ++i) {
    index.position.push_back(walk.position());
    index.offset.push_back(walk.offset());
    if (i == samples) return;
    walk.next();
  }
}

}  // namespace

GptEpochs count_epochs(PackedArray<std::int32_t> lengths, const GptIndexOptions& options) {
  require(options.first >= 0 && options.first <= options.last && std::cmp_less_equal(options.last, lengths.size()) &&
              options.seq_length > 0 && options.samples.value_or(0) >= 0,
          "documents {} to {} of {}, sequences of {}", options.first, options.last, lengths.size(), options.seq_length);
  require_user(options.last <= std::numeric_limits<std::int32_t>::max(),
               "{} has more than 2147483647 sequences, which a GPT dataset cannot number", options.what);
  GptEpochs result;
  result.tokens_per_epoch = sum_lengths(lengths, options);
  const std::int64_t tokens = result.tokens_per_epoch, asked = options.samples.value_or(0);
  if (asked > 0) {
    require_user(tokens > 0,
                 "{} has no tokens ({} documents), and {} samples are asked of it: give it more of dataset.split, or "
                 "more data",
                 options.what, options.last - options.first, asked);
    require_user(asked < max_samples && asked <= (max_tokens - tokens) / options.seq_length,
                 "{} samples are asked of {}; at most {} can be numbered", asked, options.what, max_samples - 1);
    const std::int64_t needed = asked * options.seq_length + (options.add_extra_token ? 1 : 0);
    result.epochs = (needed + tokens - 1) / tokens;
  }
  result.samples = count_samples(result.epochs * tokens, options);
  require_user(result.samples < max_samples, "{} has {} samples; at most {} can be numbered", options.what,
               result.samples, max_samples - 1);
  if (result.epochs > 1) {
    const std::int64_t before = full_samples((result.epochs - 1) * tokens, options);
    const auto enough = static_cast<std::int64_t>(0.80 * static_cast<double>(full_samples(tokens, options)));
    result.last_apart = asked - before < enough;
    if (result.last_apart) result.samples_before_last = before;
  }
  return result;
}

GptIndexArrays build_gpt_index(PackedArray<std::int32_t> lengths, const GptIndexOptions& options) {
  const GptEpochs plan = count_epochs(lengths, options);
  NumpyRandom random(options.seed);
  GptIndexArrays index;
  index.documents.reserve(static_cast<std::size_t>(plan.epochs * (options.last - options.first)));
  add_epochs(plan.last_apart ? plan.epochs - 1 : plan.epochs, options, random, index.documents);
  if (plan.last_apart) add_epochs(1, options, random, index.documents);
  add_starts(lengths, options, plan.samples, index);
  index.order.resize(static_cast<std::size_t>(plan.samples));
  std::iota(index.order.begin(), index.order.end(), std::uint32_t{0});
  const auto before = static_cast<std::size_t>(plan.samples_before_last);
  random.shuffle(std::span(index.order).first(before));
  random.shuffle(std::span(index.order).subspan(before));
  return index;
}

}  // namespace tera
