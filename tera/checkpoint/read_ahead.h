#pragma once
// Prefetches chunks of a checkpoint's files with a few threads: a disk with one request in flight at a time is idle for
// half of the time.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "tera/base/file.h"

namespace tera {

class Checkpoint;

struct FileChunk {
  std::size_t file = 0;  // index in Manifest::files
  std::uint64_t begin = 0;
  std::size_t bytes = 0;
  // Direct I/O, which saves the copy through the page cache: for files that only this rank reads, and only once.
  // `begin` is then a multiple of ReadAhead::max_bytes.
  bool direct = false;
};

class ReadAhead {
 public:
  static constexpr std::size_t max_bytes = std::size_t{4} << 20;  // limit of a chunk

  // Both arguments outlive the object.
  ReadAhead(const Checkpoint& checkpoint, std::span<const FileChunk> chunks);
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead();

  // The next chunk, in the order of the list; its bytes stay valid until the next call. Errors of reads are thrown
  // here.
  std::span<const std::byte> next();

 private:
  struct Slot {
    std::vector<std::byte> memory;
    std::span<std::byte> bytes;  // in `memory`, aligned for direct I/O
    std::exception_ptr error;
    bool ready = false;
  };
  Slot& slot(std::size_t number) { return slots_[number % slots_.size()]; }
  void work();
  void read(const FileChunk& chunk, Slot& slot);

  const Checkpoint& checkpoint_;
  std::span<const FileChunk> chunks_;
  std::vector<Slot> slots_;

  std::mutex mutex_;  // guards the members below except threads_, and Slot::ready
  std::condition_variable slot_freed_, chunk_read_;
  std::size_t started_ = 0, delivered_ = 0, released_ = 0;  // numbers of chunks
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tera
