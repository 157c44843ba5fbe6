#pragma once
// The three index arrays of Megatron-LM's GPT dataset (document order, sample starts, shuffle), equal to its own number
// for number. Documents (sequences of the .bin file) are shuffled over all epochs together, their tokens read as one
// stream and cut into samples that share one token with the next, and the samples shuffled again.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tera/base/mapped_file.h"

namespace tera {

struct GptIndexOptions {
  std::int64_t first = 0, last = 0;     // the documents of the split are [first, last)
  std::optional<std::int64_t> samples;  // a minimum; none: one epoch
  std::int64_t seq_length = 0;
  std::uint32_t seed = 0;
  bool add_extra_token = true;    // samples have seq_length + 1 tokens
  bool drop_last_partial = true;  // false: the last sample may be short
  std::string what;               // for messages: "the train split of PREFIX"
};

// The number of epochs that the requested samples take. Where only a small part of the last epoch is needed, it is
// shuffled apart, so that earlier epochs are read in full.
struct GptEpochs {
  std::int64_t epochs = 1, tokens_per_epoch = 0;
  std::int64_t samples = 0;              // N, all samples of the epochs
  std::int64_t samples_before_last = 0;  // samples of the epochs before the last, if that is shuffled apart
  bool last_apart = false;
};

// Where sample i begins; it ends where sample i + 1 begins.
struct SampleStarts {
  std::span<const std::int64_t> position;  // [N+1] index in the document order
  std::span<const std::int32_t> offset;    // [N+1] tokens of that document before it
};

struct GptIndexView {
  std::span<const std::int32_t> documents;  // [epochs * (last - first)] document order
  SampleStarts starts;                      // [N+1]
  std::span<const std::uint32_t> order;     // [N] the sample that comes i-th
};

struct GptIndexArrays {
  std::vector<std::int32_t> documents;
  std::vector<std::int64_t> position;
  std::vector<std::int32_t> offset;
  std::vector<std::uint32_t> order;
  GptIndexView view() const { return {documents, {position, offset}, order}; }
};

// Lengths are of all documents of the file. A UserError if samples are requested from a split without tokens, or more
// than can be numbered.
GptEpochs count_epochs(PackedArray<std::int32_t> lengths, const GptIndexOptions& options);
GptIndexArrays build_gpt_index(PackedArray<std::int32_t> lengths, const GptIndexOptions& options);

}  // namespace tera
