#pragma once
// Writes PREFIX.bin and PREFIX.idx, byte for byte as Megatron-LM's builder does. Tokens go to disk as they come;
// lengths and document ends (12 bytes for a document of one sequence) are kept until finish(). Without finish() (an
// exception, an interruption) no file is left that looks like a dataset.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tera/base/file.h"
#include "tera/data/indexed_dataset.h"

namespace tera {

class IndexedWriter {
 public:
  using Modes = IndexedDataset::Modes;

  IndexedWriter(const std::string& prefix, TokenType type, Modes modes = Modes::none);

  // One sequence; a UserError if an id does not fit the type.
  void add_sequence(std::span<const std::int32_t> tokens, std::int8_t mode = 0);
  void end_document();                                      // may hold no sequence at all
  void add_document(std::span<const std::int32_t> tokens);  // of one sequence
  // All of another dataset, of the same type and with modes if this one has them.
  void append(const IndexedDataset& other);
  void finish();

  std::int64_t sequences() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t documents() const { return static_cast<std::int64_t>(document_index_.size()) - 1; }
  std::uint64_t data_bytes() const { return flushed_ + pending_.size(); }

 private:
  void put(std::span<const std::byte> bytes);
  void flush();
  void write_index();

  AtomicFile index_, data_;
  TokenType type_;
  Modes stores_modes_;
  std::vector<std::byte> pending_;  // what was not written yet
  std::uint64_t flushed_ = 0;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> document_index_{0};
  std::vector<std::int8_t> modes_;
};

}  // namespace tera
