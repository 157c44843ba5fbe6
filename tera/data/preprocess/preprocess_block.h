#pragma once
// Tokenizes a block of lines: the work of one thread of preprocess().

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tera/data/preprocess/jsonl_blocks.h"
#include "tera/data/preprocess/jsonl_line.h"
#include "tera/data/preprocess/preprocess.h"

namespace tera {

// Documents of one key, as IndexedWriter::add_stored takes them.
struct StoredDocuments {
  std::vector<std::byte> tokens;
  std::vector<std::int32_t> lengths;
  std::vector<std::uint32_t> ends;
};

struct BadLine {
  std::int64_t line = 0;  // index in the block, from 0
  std::string reason;
};

struct BlockJob {
  static constexpr std::size_t max_reported_lines = 10;

  LineBlock block;
  std::vector<StoredDocuments> documents;  // one for each key
  std::int64_t lines = 0, bad_lines = 0;
  std::vector<BadLine> bad;  // the first few

  void clear();  // keeps memory for the next block, but not that of unusually long lines
};

// An encoder with its caches, a parser with its buffers.
class BlockEncoder {
 public:
  BlockEncoder(const PreprocessOptions& options, const Tokenizer& tokenizer);

  // Stops at the first bad line, unless bad lines are to be skipped.
  void encode(BlockJob& job);

 private:
  struct Counts {
    std::size_t tokens = 0, sequences = 0;
  };
  void encode_line(std::string_view line, BlockJob& job);
  Counts encode_key(std::size_t key);
  void store(StoredDocuments& documents, std::span<const std::int32_t> ids, std::span<const std::int32_t> lengths);
  std::string overlong() const;

  const PreprocessOptions& options_;
  TokenType type_;
  std::int32_t eod_;
  std::unique_ptr<Encoder> encoder_;
  JsonlParser parser_;
  // Values of the current line, key after key.
  std::vector<std::int32_t> ids_, lengths_;
  std::vector<Counts> counts_;  // one for each key
};

}  // namespace tera
