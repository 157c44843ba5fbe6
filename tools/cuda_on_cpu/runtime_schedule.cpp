// The scheduler of streams: which stream progresses, and which thread does its work.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>

#include "tools/cuda_on_cpu/options.h"
#include "tools/cuda_on_cpu/runtime.h"
#include "tools/cuda_on_cpu/stop.h"
#include "tools/cuda_on_cpu/stream.h"

namespace cuda_on_cpu {
namespace {

using Streams = std::vector<CUstream_st*>;

bool can_progress(const CUstream_st& stream) {
  return !stream.busy && !stream.work.empty() && std::ranges::all_of(stream.work.front().after, &Point::reached);
}

// Polled work can progress, too, but may do nothing.
bool is_ready(const CUstream_st* stream) { return can_progress(*stream) && stream->last_poll == 0; }
bool is_polled(const CUstream_st* stream) { return can_progress(*stream) && stream->last_poll != 0; }

Streams all_streams() {
  Streams all;
  for (const auto& stream : machine().streams) all.push_back(stream.get());
  return all;
}

// The streams that have to go on until the points are reached.
void add_needed(std::span<const Point> points, Streams& needed) {
  for (const Point& point : points) {
    if (point.reached() || std::ranges::find(needed, point.stream.get()) != needed.end()) continue;
    needed.push_back(point.stream.get());
    add_needed(point.stream->work.front().after, needed);
  }
}

// The newest that is ready: in programs with a missing wait it is more often the one that ought to wait.
CUstream_st* newest_ready(const Streams& streams) {
  CUstream_st* newest = nullptr;
  for (CUstream_st* stream : streams)
    if (is_ready(stream) && (!newest || stream->number > newest->number)) newest = stream;
  return newest;
}

CUstream_st* longest_unpolled(const Streams& streams) {
  CUstream_st* longest = nullptr;
  for (CUstream_st* stream : streams)
    if (is_polled(stream) && (!longest || stream->last_poll < longest->last_poll)) longest = stream;
  return longest;
}

CUstream_st* any_able(Streams streams) {
  std::erase_if(streams, [](const CUstream_st* stream) { return !can_progress(*stream); });
  return streams.empty() ? nullptr : streams[machine().random() % streams.size()];
}

// Null: all that could go on is being done by other threads.
CUstream_st* choose(std::span<const Point> wanted) {
  if (options().streams == StreamOrder::random) return any_able(all_streams());
  Streams needed;
  add_needed(wanted, needed);
  if (CUstream_st* const stream = newest_ready(needed)) return stream;
  // What is waited for depends on somebody else, who may depend on anything that was put on another stream here.
  if (std::ranges::none_of(needed, is_polled)) return nullptr;
  if (CUstream_st* const stream = newest_ready(all_streams())) return stream;
  return longest_unpolled(all_streams());
}

void remove_if_over(CUstream_st& stream) {
  if (!stream.destroyed || !stream.work.empty()) return;
  std::erase_if(machine().streams, [&](const auto& known) { return known.get() == &stream; });
}

// Calls the first piece of the stream's work; false: it is not done yet.
bool do_one(Lock& lock, CUstream_st& stream) {
  const auto kept = stream.shared_from_this();
  Work& work = stream.work.front();  // stays in its place while others append
  stream.busy = true;
  lock.unlock();
  const bool done = work.step();
  if (done) work.step = nullptr;  // What it holds is given back without the lock.
  lock.lock();
  stream.busy = false;
  if (done) {
    stream.work.pop_front();
    ++stream.finished;
    stream.last_poll = 0;
    remove_if_over(stream);
  } else {
    stream.last_poll = ++machine().polls;
  }
  machine().changed.notify_all();
  return done;
}

// When nothing but polled work is left, the processor is left to those that it waits for.
void do_one_patiently(Lock& lock, CUstream_st& stream) {
  if (do_one(lock, stream) || newest_ready(all_streams())) return;
  machine().changed.wait_for(lock, std::chrono::microseconds(20));
}

[[noreturn]] void report_standstill() {
  std::string text;
  for (const CUstream_st* stream : all_streams()) {
    if (stream->work.empty()) continue;
    text +=
        "\n  stream " + std::to_string(stream->number) + " of device " + std::to_string(stream->device) + " waits for";
    for (const Point& point : stream->work.front().after)
      if (!point.reached()) text += " stream " + std::to_string(point.stream->number);
  }
  stop("streams wait for each other%s", text.c_str());
}

bool anybody_works() {
  return std::ranges::any_of(machine().streams, [](const auto& stream) { return stream->busy; });
}

void progress_loop() {
  Lock lock = lock_machine();
  while (!machine().ending) {
    CUstream_st* next = nullptr;
    if (options().streams == StreamOrder::random) {
      next = any_able(all_streams());
    } else {
      next = newest_ready(all_streams());
      if (!next) next = longest_unpolled(all_streams());
    }
    if (next)
      do_one_patiently(lock, *next);
    else
      machine().changed.wait(lock);
  }
}

// Stops the driver thread before the objects that its work uses are destroyed.
void end_driver() {
  {
    const Lock lock = lock_machine();
    machine().ending = true;
    machine().changed.notify_all();
  }
  machine().driver.join();
}

}  // namespace

bool Point::reached() const { return !stream || stream->finished >= count; }

Machine::Machine() : random(options().stream_seed), used(static_cast<std::size_t>(options().devices)) {
  for (int device = 0; device < options().devices; ++device)
    streams.push_back(std::make_shared<CUstream_st>(streams_made++, device, true));
}

Machine& machine() {
  static auto* const only = new Machine;  // never destroyed: other objects give their memory back at the end
  return *only;
}

void wait_until(Lock& lock, std::span<const Point> points) {
  while (!std::ranges::all_of(points, &Point::reached)) {
    if (CUstream_st* const next = choose(points))
      do_one_patiently(lock, *next);
    else if (anybody_works())
      machine().changed.wait(lock);
    else
      report_standstill();
  }
}

void progress_towards(Lock& lock, std::span<const Point> points) {
  if (std::ranges::all_of(points, &Point::reached)) return;
  if (CUstream_st* const next = choose(points)) do_one(lock, *next);
}

void progress_after_append(Lock& lock) {
  machine().changed.notify_all();
  if (options().streams == StreamOrder::lazy) return;
  if (options().streams == StreamOrder::random) {
    while (machine().random() % 2 != 0) {
      CUstream_st* const next = any_able(all_streams());
      if (!next) return;
      do_one(lock, *next);
    }
    return;
  }
  const std::uint64_t polled_before = machine().polls;
  for (;;) {  // each that is polled once
    CUstream_st* next = newest_ready(all_streams());
    if (!next) next = longest_unpolled(all_streams());
    if (!next || next->last_poll > polled_before) return;
    do_one(lock, *next);
  }
}

void start_progress_thread() {
  static std::once_flag once;
  std::call_once(once, [] {
    machine().driver = std::thread(progress_loop);
    std::atexit(end_driver);
  });
}

}  // namespace cuda_on_cpu
