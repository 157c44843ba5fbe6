#include "tera/checkpoint/read_ahead.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "tera/base/error.h"
#include "tera/checkpoint/checkpoint.h"

namespace tera {
namespace {

constexpr std::size_t most_threads = 3, most_slots = 6;

std::size_t whole_blocks(std::size_t bytes) {
  return (bytes + direct_block_bytes - 1) / direct_block_bytes * direct_block_bytes;
}

// False where the system cannot (a file system without direct I/O), or the file is not as long as it should be: the
// usual way will say so. `out` has room for whole blocks.
bool read_past_cache(const FileDescriptor& file, std::uint64_t offset, std::span<std::byte> out, std::size_t bytes) {
  const int flags = ::fcntl(file.get(), F_GETFL);
  if (flags < 0 || ::fcntl(file.get(), F_SETFL, flags | O_DIRECT) != 0) return false;
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t n =
        ::pread(file.get(), out.data() + done, whole_blocks(bytes - done), static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
    if (done < bytes && done % direct_block_bytes != 0) return false;
  }
  return true;
}

}  // namespace

ReadAhead::ReadAhead(const Checkpoint& checkpoint, std::span<const Stretch> stretches)
    : checkpoint_(checkpoint), stretches_(stretches), slots_(std::min(most_slots, stretches.size())) {
  std::size_t largest = 0;
  for (const Stretch& stretch : stretches) largest = std::max(largest, stretch.bytes);
  for (Slot& slot : slots_) {
    slot.memory.resize(whole_blocks(largest) + direct_block_bytes);
    void* begin = slot.memory.data();
    std::size_t room = slot.memory.size();
    std::align(direct_block_bytes, whole_blocks(largest), begin, room);
    slot.bytes = {static_cast<std::byte*>(begin), whole_blocks(largest)};
  }
  for (std::size_t i = 0; i < std::min(most_threads, stretches.size()); ++i) threads_.emplace_back([this] { work(); });
}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  room_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::span<const std::byte> ReadAhead::next() {
  std::unique_lock lock(mutex_);
  require(handed_out_ < stretches_.size(), "there are no more than {} stretches", stretches_.size());
  if (given_back_ < handed_out_) {
    slot(given_back_++).ready = false;
    room_.notify_one();
  }
  Slot& wanted = slot(handed_out_);
  arrival_.wait(lock, [&] { return wanted.ready; });
  if (wanted.error) std::rethrow_exception(wanted.error);
  return wanted.bytes.first(stretches_[handed_out_++].bytes);
}

void ReadAhead::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    room_.wait(lock,
               [&] { return stopping_ || started_ == stretches_.size() || started_ < given_back_ + slots_.size(); });
    if (stopping_ || started_ == stretches_.size()) return;
    const std::size_t number = started_++;
    lock.unlock();
    Slot& to = slot(number);
    read(stretches_[number], to);
    lock.lock();
    to.ready = true;
    arrival_.notify_one();
  }
}

void ReadAhead::read(const Stretch& stretch, Slot& slot) {
  try {
    if (stretch.alone && read_past_cache(checkpoint_.open(stretch.file), stretch.begin, slot.bytes, stretch.bytes))
      return;
    read_at(checkpoint_.open(stretch.file), stretch.begin, slot.bytes.first(stretch.bytes),
            checkpoint_.path(stretch.file));
  } catch (...) {
    slot.error = std::current_exception();
  }
}

}  // namespace tera
