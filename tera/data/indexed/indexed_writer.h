#pragma once
// Writes PREFIX.bin and PREFIX.idx, byte for byte as Megatron-LM's builder does. Tokens go to disk as they come;
// lengths and document ends, whose offset in .idx is known only at the end, go into a file without a name: a few MiB of
// memory, however large the dataset. Without finish() (an exception, an interruption) no file is left that looks like a
// dataset.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tera/base/file.h"
#include "tera/data/indexed/indexed_dataset.h"
#include "tera/data/indexed/spool.h"

namespace tera {

class IndexedWriter {
 public:
  using Modes = IndexedDataset::Modes;

  // A UserError if files of these names could not be created.
  IndexedWriter(const std::string& prefix, TokenType type, Modes modes = Modes::none);

  // Adds one sequence; a UserError if an id does not fit the type.
  void add_sequence(std::span<const std::int32_t> tokens, std::int8_t mode = 0);
  void end_document();                                      // the document may have no sequences
  void add_document(std::span<const std::int32_t> tokens);  // a document of one sequence
  // Adds several documents, with tokens in the type of the file: lengths of all their sequences, and for each document
  // how many of these sequences come before its end.
  void add_stored(std::span<const std::byte> tokens, std::span<const std::int32_t> lengths,
                  std::span<const std::uint32_t> document_ends);
  // Appends another dataset, of the same type and with modes if this one has them. `meanwhile` is called every 64 MiB.
  void append(const IndexedDataset& other, const std::function<void()>& meanwhile = {});
  void finish() {
    complete();
    publish();
  }
  // The two halves of finish(), so that several datasets can appear together: first all that can fail or take long,
  // then the names.
  void complete();
  void publish();
  // Renames all of them or none: an obstacle to one is found before the first gets its name.
  static void publish(std::span<IndexedWriter* const> writers);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return static_cast<std::int64_t>(document_ends_.size() / sizeof(std::int64_t)); }
  std::uint64_t data_bytes() const { return flushed_ + pending_.size(); }

 private:
  void put(std::span<const std::byte> bytes);
  void put_length(std::int32_t length, std::int8_t mode);
  void flush();
  void write_index();
  void check_targets() const;
  void take_back();

  std::string prefix_;
  AtomicFile index_, data_;
  TokenType type_;
  Modes stores_modes_;
  std::vector<std::byte> pending_;  // bytes that were not written yet
  std::uint64_t flushed_ = 0;
  std::int64_t sequences_ = 0, last_end_ = 0;
  Spool lengths_, document_ends_, modes_;  // int32, int64, int8
};

}  // namespace tera
