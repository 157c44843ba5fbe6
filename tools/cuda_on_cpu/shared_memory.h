#pragma once
// Memory of a block: what kernels declare __shared__ lies in one section of each library; what a launch asks for is one
// array. One block runs at a time, so one copy of each is enough. Before a block all of it is NaN, so that a read of
// what no thread wrote shows.

#include <cstddef>
#include <span>

namespace cuda_on_cpu {

// 227 KiB, as on a GPU of compute capability 9.0; more than 48 KiB only after cudaFuncSetAttribute.
inline constexpr std::size_t max_shared_bytes = 232448, default_shared_bytes = 49152;

// Registers a library's section when it is loaded; once or more.
void add_shared_section(unsigned char* begin, unsigned char* end);

// The memory of a launch's blocks, one after another.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t dynamic_bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Before each block.
  void forget();

 private:
  std::size_t dynamic_bytes_;
};

void* dynamic_shared_memory();

}  // namespace cuda_on_cpu
