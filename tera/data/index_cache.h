#pragma once
// An on-disk cache of GPT indices, so that a long one is built once and then shared by all ranks and runs. The key of a
// file is everything that its content depends on: the options and the lengths of the documents, not their paths.

#include <filesystem>
#include <string>

#include "tera/base/mapped_file.h"
#include "tera/data/gpt_index.h"

namespace tera {

// The arrays, in memory or in a mapped file.
class StoredGptIndex {
 public:
  StoredGptIndex() = default;
  explicit StoredGptIndex(GptIndexArrays arrays) : arrays_(std::move(arrays)) {}
  StoredGptIndex(MappedFile file, const GptIndexView& in_file) : file_(std::move(file)), in_file_(in_file) {}
  GptIndexView view() const { return file_.size() > 0 ? in_file_ : arrays_.view(); }
  bool mapped() const { return file_.size() > 0; }

 private:
  GptIndexArrays arrays_;
  MappedFile file_;
  GptIndexView in_file_;
};

// Everything that the order depends on, as a line of text.
std::string describe_gpt_index(PackedArray<std::int32_t> lengths, const GptIndexOptions& options);

// Reads the index from the folder if it is there, complete and valid; else builds it and, given a folder, writes it.
StoredGptIndex make_gpt_index(PackedArray<std::int32_t> lengths, const GptIndexOptions& options,
                              const std::filesystem::path& folder);

}  // namespace tera
