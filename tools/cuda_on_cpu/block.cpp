#include "tools/cuda_on_cpu/block.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tools/cuda_on_cpu/fiber.h"
#include "tools/cuda_on_cpu/options.h"
#include "tools/cuda_on_cpu/race_detector.h"
#include "tools/cuda_on_cpu/shared_memory.h"
#include "tools/cuda_on_cpu/stop.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_on_cpu {
namespace {

constexpr int max_threads = 1024, warp_size = 32, barriers = 16;

struct Slot;

struct Thread {
  uint3 index{};
  int number = 0, lane = 0, warp = 0;
  Fiber* fiber = nullptr;  // null: not begun
  bool ended = false;
  const char* waits_in = nullptr;
  Where where;
  std::vector<Copy> open;                // copies of no group yet
  std::deque<std::vector<Copy>> groups;  // in flight, oldest first
  std::vector<Copy> taken;
};

// A slot for one exchange of lanes. It is reused only when all lanes that arrived have left, so that the race detector
// does not take what a quick lane does next for something that a slow one waited for.
struct Slot {
  WarpExchange exchanged;
  unsigned mask = 0, unread = 0;
  WarpOp kind{};
  Where where;  // call site of the first lane that came
  bool used = false, complete = false;
};

struct Warp {
  unsigned alive = 0;
  Slot slots[warp_size];
};

struct Barrier {
  int arrived = 0, wanted = 0;
  int phase = 0;
  Where where;
  std::vector<Thread*> waiting;
  // The race detector's, alternating between phases, so that a quick thread's next use is apart, as in Slot.
  char marks[2] = {};
};

// Ready threads, in the order in which they became so.
class ReadyQueue {
 public:
  void clear() { begin_ = size_ = 0; }
  bool empty() const { return size_ == 0; }
  void push(Thread* thread) { at(size_++) = thread; }
  Thread* pop(std::mt19937* random) {
    if (random) std::swap(at(0), at((*random)() % size_));
    Thread* const first = at(0);
    begin_ = (begin_ + 1) % max_threads;
    --size_;
    return first;
  }

 private:
  Thread*& at(std::size_t i) { return all_[(begin_ + i) % max_threads]; }
  Thread* all_[max_threads];
  std::size_t begin_ = 0, size_ = 0;
};

class Blocks {
 public:
  Blocks() {
    for (Barrier& barrier : barriers_) barrier.waiting.reserve(max_threads);
  }
  void run(const Launch& launch);
  Thread& running() { return *running_; }
  void sync(int number, int threads, Where where);
  const WarpExchange& exchange_lanes(unsigned mask, WarpOp kind, const void* value, std::size_t bytes, Where where);
  const Launch& launch() const { return *launch_; }

 private:
  void run_block(uint3 index);
  void set_up_threads();
  [[noreturn]] static void thread_main();
  void end_running();
  Thread* choose_next();
  void continue_with(Thread& next);
  void suspend(const char* what, Where where);
  void wake(Thread& thread);
  void complete_if_all_came(Warp& warp, Slot& slot);
  void open_if_all_came(Barrier& barrier);
  Slot& slot_for(Warp& warp, unsigned mask, WarpOp kind, Where where);
  Fiber& fiber_for(const Thread& thread);
  [[noreturn]] void report_deadlock();
  std::mt19937* random() { return options().order == Order::random ? &random_ : nullptr; }

  const Launch* launch_ = nullptr;
  Thread threads_[max_threads];
  Warp warps_[max_threads / warp_size];
  Barrier barriers_[barriers];
  ReadyQueue ready_;
  int count_ = 0, alive_ = 0;
  Thread* running_ = nullptr;
  Fiber host_;
  std::vector<Fiber*> free_fibers_;
  RaceDetector races_;
  std::mt19937 random_{options().seed};
};

std::mutex one_launch_at_a_time;

Blocks& blocks() {
  static auto* const all = new Blocks;
  return *all;
}

const char* name_of(WarpOp kind) {
  constexpr const char* names[] = {"__syncwarp", "a shuffle", "a vote", "__match_any_sync", "a reduction of a warp",
                                   "ldmatrix",   "mma"};
  return names[static_cast<int>(kind)];
}

std::vector<std::uint64_t> order_of_blocks(std::uint64_t count, std::mt19937& random) {
  std::vector<std::uint64_t> order(count);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  if (options().order == Order::reverse) std::reverse(order.begin(), order.end());
  if (options().order == Order::random) std::shuffle(order.begin(), order.end(), random);
  return order;
}

void Blocks::run(const Launch& launch) {
  launch_ = &launch;
  blockDim = launch.block;
  gridDim = launch.grid;
  count_ = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
  SharedMemory memory(launch.shared_bytes);
  races_.begin_launch(count_);
  const auto all = static_cast<std::uint64_t>(launch.grid.x) * launch.grid.y * launch.grid.z;
  for (const std::uint64_t i : order_of_blocks(all, random_)) {
    memory.forget();
    run_block({static_cast<unsigned>(i % launch.grid.x), static_cast<unsigned>(i / launch.grid.x % launch.grid.y),
               static_cast<unsigned>(i / launch.grid.x / launch.grid.y)});
  }
  races_.end_launch();
}

void Blocks::set_up_threads() {
  const dim3 size = launch_->block;
  for (int w = 0; w * warp_size < count_; ++w) {
    Warp& warp = warps_[w];
    warp.alive = count_ - w * warp_size >= warp_size ? ~0u : (1u << (count_ - w * warp_size)) - 1;
    for (Slot& slot : warp.slots) {
      if (!slot.used) break;
      slot.used = false;
    }
  }
  for (Barrier& barrier : barriers_) barrier.arrived = 0;
  ready_.clear();
  for (int i = 0; i < count_; ++i) {
    const int number = options().order == Order::reverse ? count_ - 1 - i : i;
    Thread& thread = threads_[number];
    const auto u = static_cast<unsigned>(number);
    thread.index = {u % size.x, u / size.x % size.y, u / size.x / size.y};
    thread.number = number;
    thread.lane = number % warp_size;
    thread.warp = number / warp_size;
    thread.fiber = nullptr;
    thread.ended = false;
    ready_.push(&thread);
  }
}

void Blocks::run_block(uint3 index) {
  blockIdx = index;
  alive_ = count_;
  set_up_threads();
  races_.begin_block();
  Thread& first = *choose_next();
  first.fiber = &fiber_for(first);
  running_ = &first;
  threadIdx = first.index;
  races_.switch_to(first.number);
  host_.switch_to(*first.fiber);
  races_.switch_to_host();
}

Fiber& Blocks::fiber_for(const Thread& thread) {
  Fiber* fiber = races_.has_stack_per_thread() ? races_.fiber_of(thread.number) : nullptr;
  if (!fiber && !free_fibers_.empty()) {
    fiber = free_fibers_.back();
    free_fibers_.pop_back();
  }
  if (!fiber) fiber = races_.keep(thread.number, new Fiber(options().stack_bytes, thread.number));
  fiber->prepare(&Blocks::thread_main);
  return *fiber;
}

// What a fiber runs. Where a thread ends and the next has not begun yet, that one takes over the stack.
void Blocks::thread_main() {
  Blocks& all = blocks();
  Fiber::entered(*all.running_->fiber);
  for (;;) {
    all.races_.begin_thread();
    all.launch_->kernel();
    all.races_.end_thread();
    all.end_running();
    Fiber& mine = *all.running_->fiber;
    Thread* const next = all.choose_next();
    if (!next || next->fiber || all.races_.has_stack_per_thread()) {
      if (!all.races_.has_stack_per_thread()) all.free_fibers_.push_back(&mine);
      if (!next) {
        all.races_.switch_to_host();
        mine.switch_to(all.host_, true);
      }
      if (!next->fiber) next->fiber = &all.fiber_for(*next);
      all.running_ = next;
      threadIdx = next->index;
      all.races_.switch_to(next->number);
      mine.switch_to(*next->fiber, true);
    }
    next->fiber = &mine;
    all.running_ = next;
    threadIdx = next->index;
  }
}

void Blocks::end_running() {
  Thread& thread = *running_;
  if (!thread.open.empty() ||
      std::any_of(thread.groups.begin(), thread.groups.end(), [](auto& g) { return !g.empty(); }))
    stop("kernel %s: thread %d ended with copies in flight", launch_->name, thread.number);
  thread.groups.clear();
  thread.ended = true;
  --alive_;
  Warp& warp = warps_[thread.warp];
  warp.alive &= ~(1u << thread.lane);
  for (Slot& slot : warp.slots) {
    if (!slot.used) break;
    if (!slot.complete) complete_if_all_came(warp, slot);
  }
  for (Barrier& barrier : barriers_)
    if (barrier.arrived > 0) open_if_all_came(barrier);
}

Thread* Blocks::choose_next() {
  if (alive_ == 0) return nullptr;
  if (ready_.empty()) report_deadlock();
  return ready_.pop(random());
}

// Switches from the running thread, which waits.
void Blocks::continue_with(Thread& next) {
  Thread& before = *running_;
  if (&next == &before) return;
  if (!next.fiber) next.fiber = &fiber_for(next);
  running_ = &next;
  threadIdx = next.index;
  races_.switch_to(next.number);
  before.fiber->switch_to(*next.fiber);
}

void Blocks::suspend(const char* what, Where where) {
  running_->waits_in = what;
  running_->where = where;
  continue_with(*choose_next());
}

void Blocks::wake(Thread& thread) { ready_.push(&thread); }

void Blocks::open_if_all_came(Barrier& barrier) {
  if (barrier.arrived < (barrier.wanted > 0 ? barrier.wanted : alive_)) return;
  barrier.arrived = 0;
  barrier.phase ^= 1;
  for (Thread* thread : barrier.waiting) wake(*thread);
  barrier.waiting.clear();
}

void Blocks::sync(int number, int threads, Where where) {
  const char* const file = where.file_name();
  if (number < 0 || number >= barriers) stop("%s:%u: barrier %d", file, where.line(), number);
  if (threads % warp_size != 0) stop("%s:%u: a barrier for %d threads", file, where.line(), threads);
  Barrier& barrier = barriers_[number];
  if (barrier.arrived > 0 && barrier.wanted != threads)
    stop("%s:%u: barrier %d for %d threads, others came for %d", file, where.line(), number, threads, barrier.wanted);
  if (barrier.arrived > 0 && threads == 0 && barrier.where.line() != where.line())
    stop("kernel %s: threads of one block wait at %s:%u and at line %u", launch_->name, file, where.line(),
         barrier.where.line());
  char* const mark = &barrier.marks[barrier.phase];
  races_.release(mark);
  barrier.wanted = threads;
  barrier.where = where;
  ++barrier.arrived;
  barrier.waiting.push_back(running_);
  open_if_all_came(barrier);
  suspend("a barrier", where);
  races_.acquire(mark);
}

Slot& Blocks::slot_for(Warp& warp, unsigned mask, WarpOp kind, Where where) {
  const unsigned bit = 1u << running_->lane;
  Slot* free = nullptr;
  for (Slot& slot : warp.slots) {
    if (slot.used && !slot.complete && slot.mask == mask && slot.kind == kind && !(slot.exchanged.arrived & bit)) {
      // Lanes that exchange values execute one instruction; __syncwarp may be several.
      if (kind != WarpOp::sync && where.line() != slot.where.line())
        stop("%s:%u: lane %d comes to %s of lanes %08x, others wait at line %u", where.file_name(), where.line(),
             running_->lane, name_of(kind), mask, slot.where.line());
      return slot;
    }
    const bool over = !slot.used || (slot.complete && slot.unread == 0);
    if (over && !free) free = &slot;
    if (!slot.used) break;
  }
  if (!free) stop("kernel %s: more meetings of lanes at once than a warp can have", launch_->name);
  free->used = true;
  free->complete = false;
  free->mask = mask;
  free->kind = kind;
  free->where = where;
  free->unread = 0;
  free->exchanged.arrived = 0;
  return *free;
}

void Blocks::complete_if_all_came(Warp& warp, Slot& slot) {
  if ((slot.exchanged.arrived | (slot.mask & ~warp.alive)) != slot.mask) return;
  slot.complete = true;
  slot.unread = slot.exchanged.arrived;
  Thread* const first = threads_ + (&warp - warps_) * warp_size;
  const bool reverse = options().order == Order::reverse;
  for (int i = 0; i < warp_size; ++i) {
    const int lane = reverse ? warp_size - 1 - i : i;
    if (slot.exchanged.arrived >> lane & 1) wake(first[lane]);
  }
}

const WarpExchange& Blocks::exchange_lanes(unsigned mask, WarpOp kind, const void* value, std::size_t bytes,
                                           Where where) {
  Thread& thread = *running_;
  if (!(mask >> thread.lane & 1))
    stop("%s:%u: lane %d comes to %s of lanes %08x", where.file_name(), where.line(), thread.lane, name_of(kind), mask);
  Warp& warp = warps_[thread.warp];
  Slot& slot = slot_for(warp, mask, kind, where);
  unsigned char* const to = slot.exchanged.values[thread.lane];
  for (std::size_t i = 0; i < bytes; ++i) to[i] = static_cast<const unsigned char*>(value)[i];
  slot.exchanged.arrived |= 1u << thread.lane;
  // Only __syncwarp is specified to order memory; that other functions of a warp do so as well is luck.
  const bool orders = kind == WarpOp::sync || !options().strict;
  if (orders) races_.release(&slot);
  complete_if_all_came(warp, slot);
  suspend(name_of(kind), where);
  if (orders) races_.acquire(&slot);
  slot.unread &= ~(1u << thread.lane);
  return slot.exchanged;
}

void Blocks::report_deadlock() {
  std::string text;
  int named = 0;
  for (int i = 0; i < count_; ++i) {
    const Thread& thread = threads_[i];
    if (thread.ended || ++named > 40) continue;
    text += "\n  thread " + std::to_string(i) + " waits in " + thread.waits_in + " at " + thread.where.file_name() +
            ":" + std::to_string(thread.where.line());
  }
  stop("kernel %s, block (%u,%u,%u): %d threads wait for others that will not come%s", launch_->name, blockIdx.x,
       blockIdx.y, blockIdx.z, alive_, text.c_str());
}

}  // namespace

void run(const Launch& launch) {
  const std::lock_guard lock(one_launch_at_a_time);
  blocks().run(launch);
}

int lane() { return blocks().running().lane; }

void sync_block(int barrier, int threads, Where where) { blocks().sync(barrier, threads, where); }

const WarpExchange& exchange_lanes(unsigned mask, WarpOp kind, const void* value, std::size_t bytes, Where where) {
  return blocks().exchange_lanes(mask, kind, value, bytes, where);
}

void start_copy(const Copy& copy) { blocks().running().open.push_back(copy); }

void commit_copies() {
  Thread& thread = blocks().running();
  thread.groups.push_back(std::exchange(thread.open, {}));
}

std::span<const Copy> next_copies(int pending) {
  Thread& thread = blocks().running();
  thread.taken.clear();
  while (thread.taken.empty() && static_cast<int>(thread.groups.size()) > pending) {
    thread.taken = std::move(thread.groups.front());
    thread.groups.pop_front();
  }
  return thread.taken;
}

}  // namespace cuda_on_cpu
