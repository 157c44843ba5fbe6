#pragma once
// Megatron-LM's pair of files, read: PREFIX.bin holds the tokens of all sequences one after the other, PREFIX.idx says
// where each begins and which of them make a document (docs/data.md has the layout). Both are mapped, not read into
// memory, and not trusted: every count and offset is checked when they are opened, so what follows needs no checks.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "tera/base/mapped_file.h"
#include "tera/data/indexed/token_type.h"

namespace tera {

// The beginning of a .idx file; the arrays follow without gaps.
struct IndexedHeader {
  static constexpr std::string_view magic{"MMIDIDX\0\0", 9};
  static constexpr std::uint64_t version = 1;
  static constexpr std::size_t bytes = 34;  // magic 9, version 8, type 1, sequences 8, document entries 8
};

class IndexedDataset {
 public:
  // Whether the index ends with one mode per sequence (multimodal data); the file does not say.
  enum class Modes : std::uint8_t { none, stored };

  explicit IndexedDataset(const std::string& prefix, Modes modes = Modes::none);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t documents() const { return static_cast<std::int64_t>(document_index_.size()) - 1; }
  std::int64_t tokens() const { return tokens_; }  // in all sequences

  PackedArray<std::int32_t> lengths() const { return lengths_; }                // [S] in tokens
  PackedArray<std::int64_t> pointers() const { return pointers_; }              // [S] in bytes of .bin
  PackedArray<std::int64_t> document_index() const { return document_index_; }  // [D+1] sequences before each document
  PackedArray<std::int8_t> modes() const { return modes_; }                     // [S], or none

  // Tokens [offset, offset + out.size()) of a sequence. A UserError if one is not in [0, vocab_size).
  void read(std::int64_t sequence, std::int64_t offset, std::int64_t vocab_size, std::span<std::int32_t> out) const;
  // The bytes of a sequence as they are stored.
  std::span<const std::byte> stored(std::int64_t sequence) const;
  // For reading everything once: pages that were read no longer count as memory of this process.
  void forget_pages() const {
    index_.forget_pages();
    data_.forget_pages();
  }

 private:
  void map_arrays(Modes modes);
  void check_size(Modes modes, std::uint64_t sequences, std::uint64_t entries) const;
  void check_sequences();
  void check_documents() const;

  std::string prefix_;
  MappedFile index_, data_;
  TokenType type_ = TokenType::u16;
  std::int64_t tokens_ = 0;
  PackedArray<std::int32_t> lengths_;
  PackedArray<std::int64_t> pointers_, document_index_;
  PackedArray<std::int8_t> modes_;
};

// The prefix of a path: the path itself, or the path of either file without .bin or .idx. A UserError where there is no
// such dataset, but there are some that `tera preprocess` could have made from that prefix.
std::string dataset_prefix(const std::string& path);

}  // namespace tera
