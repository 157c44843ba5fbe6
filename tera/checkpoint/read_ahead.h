#pragma once
// Stretches of a checkpoint's files, read by threads of its own a few ahead of who takes them: a disk that gets one
// request at a time stands idle for half of it.

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

struct Stretch {
  std::size_t file = 0;  // of the manifest
  std::uint64_t begin = 0;
  std::size_t bytes = 0;
  // Only this rank reads it, and only once: it need not go through the system's cache, which costs a copy. `begin` is
  // then a multiple of ReadAhead::most_bytes.
  bool alone = false;
};

class ReadAhead {
 public:
  static constexpr std::size_t most_bytes = std::size_t{4} << 20;  // of a stretch

  // Both outlive it.
  ReadAhead(const Checkpoint& checkpoint, std::span<const Stretch> stretches);
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead();

  // The next stretch, in the order of the list; its bytes stay until the next call. What reading threw is thrown here.
  std::span<const std::byte> next();

 private:
  struct Slot {
    std::vector<std::byte> memory;
    std::span<std::byte> bytes;  // of it, at an address that direct I/O takes
    std::exception_ptr error;
    bool ready = false;
  };
  Slot& slot(std::size_t number) { return slots_[number % slots_.size()]; }
  void work();
  void read(const Stretch& stretch, Slot& slot);

  const Checkpoint& checkpoint_;
  std::span<const Stretch> stretches_;
  std::vector<Slot> slots_;

  std::mutex mutex_;  // guards all below but the threads, and what `ready` of a slot says
  std::condition_variable room_, arrival_;
  std::size_t started_ = 0, handed_out_ = 0, given_back_ = 0;  // stretches
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tera
