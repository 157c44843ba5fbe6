#include "tera/checkpoint/read_ahead.h"

#include <algorithm>

#include "tera/base/error.h"
#include "tera/checkpoint/checkpoint.h"

namespace tera {
namespace {

constexpr std::size_t most_threads = 3, most_slots = 6;

}  // namespace

ReadAhead::ReadAhead(const Checkpoint& checkpoint, std::span<const Stretch> stretches)
    : checkpoint_(checkpoint), stretches_(stretches), slots_(std::min(most_slots, stretches.size())) {
  std::size_t largest = 0;
  for (const Stretch& stretch : stretches) largest = std::max(largest, stretch.bytes);
  for (Slot& slot : slots_) slot.bytes.resize(largest);
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
  return std::span(wanted.bytes).first(stretches_[handed_out_++].bytes);
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
    const FileDescriptor file = checkpoint_.open(stretch.file);
    read_at(file, stretch.begin, std::span(slot.bytes).first(stretch.bytes), checkpoint_.path(stretch.file));
  } catch (...) {
    slot.error = std::current_exception();
  }
}

}  // namespace tera
