#include "tera/checkpoint/read_ahead.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "tera/base/error.h"
#include "tera/checkpoint/checkpoint.h"

namespace tera {
namespace {

constexpr std::size_t max_threads = 3, max_slots = 6;

std::size_t padded_to_blocks(std::size_t bytes) {
  return (bytes + direct_block_bytes - 1) / direct_block_bytes * direct_block_bytes;
}

// Reads with direct I/O. False if the file system does not support it, or if the file is too short, which a buffered
// read then reports. `out` has capacity for full blocks.
bool read_past_cache(const FileDescriptor& file, std::uint64_t offset, std::span<std::byte> out, std::size_t bytes) {
  const int flags = ::fcntl(file.get(), F_GETFL);
  if (flags < 0 || ::fcntl(file.get(), F_SETFL, flags | O_DIRECT) != 0) return false;
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t n =
        ::pread(file.get(), out.data() + done, padded_to_blocks(bytes - done), static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
    if (done < bytes && done % direct_block_bytes != 0) return false;
  }
  return true;
}

}  // namespace

ReadAhead::ReadAhead(const Checkpoint& checkpoint, std::span<const FileChunk> chunks)
    : checkpoint_(checkpoint), chunks_(chunks), slots_(std::min(max_slots, chunks.size())) {
  std::size_t largest = 0;
  for (const FileChunk& chunk : chunks) largest = std::max(largest, chunk.bytes);
  for (Slot& slot : slots_) {
    slot.memory.resize(padded_to_blocks(largest) + direct_block_bytes);
    void* begin = slot.memory.data();
    std::size_t space = slot.memory.size();
    std::align(direct_block_bytes, padded_to_blocks(largest), begin, space);
    slot.bytes = {static_cast<std::byte*>(begin), padded_to_blocks(largest)};
  }
  for (std::size_t i = 0; i < std::min(max_threads, chunks.size()); ++i) threads_.emplace_back([this] { work(); });
}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  slot_freed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::span<const std::byte> ReadAhead::next() {
  std::unique_lock lock(mutex_);
  require(delivered_ < chunks_.size(), "there are no more than {} stretches", chunks_.size());
  if (released_ < delivered_) {
    slot(released_++).ready = false;
    slot_freed_.notify_one();
  }
  Slot& wanted = slot(delivered_);
  chunk_read_.wait(lock, [&] { return wanted.ready; });
  if (wanted.error) std::rethrow_exception(wanted.error);
  return wanted.bytes.first(chunks_[delivered_++].bytes);
}

void ReadAhead::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    slot_freed_.wait(lock,
                     [&] { return stopping_ || started_ == chunks_.size() || started_ < released_ + slots_.size(); });
    if (stopping_ || started_ == chunks_.size()) return;
    const std::size_t number = started_++;
    lock.unlock();
    Slot& to = slot(number);
    read(chunks_[number], to);
    lock.lock();
    to.ready = true;
    chunk_read_.notify_one();
  }
}

void ReadAhead::read(const FileChunk& chunk, Slot& slot) {
  try {
    if (chunk.direct && read_past_cache(checkpoint_.open(chunk.file), chunk.begin, slot.bytes, chunk.bytes)) return;
    read_at(checkpoint_.open(chunk.file), chunk.begin, slot.bytes.first(chunk.bytes), checkpoint_.path(chunk.file));
  } catch (...) {
    slot.error = std::current_exception();
  }
}

}  // namespace tera
