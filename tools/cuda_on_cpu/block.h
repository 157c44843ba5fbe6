#pragma once
// Runs a kernel: its blocks one after another, the threads of a block as fibers of one thread of the host. A thread
// runs until it waits for others or ends; which one is next, and which block, is the order's choice: forward, reverse
// or random (CUDA_ON_CPU_ORDER=random:SEED).

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <span>

// CUDA's variables, of the thread that runs now.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace cuda_on_cpu {

using Where = std::source_location;

struct Launch {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  std::function<void()> kernel;  // as one thread calls it
  const char* name = "";
  const void* function = nullptr;  // the kernel's address, where the launch names it
};

// Returns when all blocks have ended. Launches of several threads of the host are serialised.
void run(const Launch& launch);

// The number of the running thread within its warp.
int lane();

// A named barrier of the block, for so many threads; 0: all that have not ended.
void sync_block(int barrier, int threads, Where where);

// A warp-synchronous operation (shuffle, vote, mma): the lanes of `mask` exchange values. Each publishes its own and
// sees those of all until its next exchange.
enum class WarpOp : std::uint8_t { sync, shuffle, vote, match, reduce, matrix_load, matrix_multiply };
struct WarpExchange {
  unsigned arrived = 0;  // lanes whose values are there
  alignas(16) unsigned char values[32][48];
};
const WarpExchange& exchange_lanes(unsigned mask, WarpOp kind, const void* value, std::size_t bytes, Where where);

// Copies to shared memory (cp.async) that the running thread has started. They are done as late as they may be: when it
// waits for their group. The kernel's own code does them, so that sanitizers see it.
struct Copy {
  void* to;
  const void* from;
  int bytes, zeros;
};
void start_copy(const Copy& copy);
void commit_copies();
// The oldest group, taken out, while more than `pending` are in flight; else nothing. Valid until the next call.
std::span<const Copy> next_copies(int pending);

}  // namespace cuda_on_cpu
