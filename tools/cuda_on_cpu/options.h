#pragma once
// How an emulated device behaves, from the environment of the process, as a GPU takes CUDA_VISIBLE_DEVICES from it:
//
//   CUDA_ON_CPU_ORDER=forward|reverse|random:SEED   of the blocks of a launch and the threads of a block
//   CUDA_ON_CPU_STREAMS=lazy|eager|random:SEED      in which streams progress where nothing orders them
//   CUDA_ON_CPU_STRICT=1                            for the race detector, of a warp's functions only __syncwarp orders
//   CUDA_ON_CPU_DEVICES=N, CUDA_ON_CPU_MEMORY_MB=N  how many devices, and how much memory each has (1 and 8192)

#include <cstddef>
#include <cstdint>
#include <random>

namespace cuda_on_cpu {

enum class Order : std::uint8_t { forward, reverse, random };
enum class StreamOrder : std::uint8_t { lazy, eager, random };

struct Options {
  Order order = Order::forward;
  unsigned seed = 1;
  StreamOrder streams = StreamOrder::lazy;
  unsigned stream_seed = 1;
  bool strict = false;
  int devices = 1;
  std::size_t memory_bytes = std::size_t{8192} << 20;
  std::size_t stack_bytes = 0;  // stack of each kernel thread
};

// A value that is none of those above ends the program.
const Options& options();

}  // namespace cuda_on_cpu
