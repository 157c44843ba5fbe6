#include "tests/support/gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/workspace.h"
#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/backend/plan/plan_ops.h"
#include "tera/base/error.h"
#include "tera/ops/copy.h"
#include "tera/ops/planned_calls.h"
#include "tera/tensor/arena.h"

// Functions of AddressSanitizer, where the program has it. It sees the memory of a GPU only where the CPU emulates one.
extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const void volatile* begin, std::size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const void volatile* begin, std::size_t bytes);
}

namespace tera::test {
namespace {

constexpr std::size_t alignment = 256, guard = 256;
constexpr std::byte pattern{0x5a};

bool only_plain_gemm = false;

struct Gpu {
  // The tables allow for fp32 sums only; the fast attention is compared with the exact one in tests/cuda.
  cuda::CudaParts parts = cuda::make_cuda({.exact_attention = true,
                                           .hopper_kernels = cuda::HopperKernels::wherever_supported,
                                           .only_plain_gemm = only_plain_gemm});
  std::unique_ptr<WorkspaceRules> rules = cuda::make_cuda_workspace_rules();
  // Whether it is an emulated one (tools/cuda_on_cpu).
  bool on_the_cpu = parts.name.find("emulated") != std::string::npos;
  std::span<std::byte> slab = parts.device->allocate(std::size_t{on_the_cpu ? 128U : 512U} << 20);
};

std::unique_ptr<Gpu>& gpu_slot() {
  static std::unique_ptr<Gpu> slot;
  return slot;
}

Gpu& gpu() {
  if (!gpu_slot()) gpu_slot() = std::make_unique<Gpu>();
  return *gpu_slot();
}

TestDevice& test_device_slot() {
  static TestDevice where = TestDevice::cpu;
  return where;
}

// Bytes from the first element to the end of the last one, gaps between rows included.
std::size_t extent(const Tensor& tensor) {
  if (count(tensor.shape) == 0) return 0;
  std::int64_t last = 0;
  for (int d = 0; d < tensor.shape.rank; ++d) last += (tensor.shape[d] - 1) * tensor.stride[d];
  return static_cast<std::size_t>(last + 1) * size_of(tensor.dtype);
}

// Host memory that is copied as one piece, and the offset of its copy in the slab.
struct Piece {
  std::byte* begin;
  std::size_t bytes, element_bytes;
  std::size_t offset = 0;
  std::byte* end() const { return begin + bytes; }
};

// There is one piece for each tensor; tensors that overlap share one, since a copy of one must not undo what another
// wrote.
std::vector<Piece> pieces_of(std::span<Tensor* const> tensors) {
  std::vector<Piece> all;
  for (const Tensor* tensor : tensors)
    if (*tensor) all.push_back({static_cast<std::byte*>(tensor->data), extent(*tensor), size_of(tensor->dtype)});
  std::ranges::sort(all, [](const Piece& a, const Piece& b) {  // by address; at one address, the longest first
    return a.begin != b.begin ? a.begin < b.begin : a.bytes > b.bytes;
  });
  std::vector<Piece> merged;
  for (const Piece& piece : all) {
    if (merged.empty() || piece.begin >= merged.back().end())
      merged.push_back(piece);
    else
      merged.back().bytes = static_cast<std::size_t>(std::max(merged.back().end(), piece.end()) - merged.back().begin);
  }
  return merged;
}

// The host's copy of the part of the slab that holds all pieces.
class Image {
 public:
  Image(std::span<Tensor* const> tensors, std::int64_t shift) : pieces_(pieces_of(tensors)) {
    std::size_t end = 0;
    for (Piece& piece : pieces_) {
      piece.offset = align_up(end + guard, alignment) + static_cast<std::size_t>(shift) * piece.element_bytes;
      end = piece.offset + piece.bytes;
    }
    bytes_.assign(align_up(end + guard, alignment), pattern);
    for (const Piece& piece : pieces_)
      if (piece.bytes > 0) std::memcpy(bytes_.data() + piece.offset, piece.begin, piece.bytes);
  }

  std::span<std::byte> bytes() { return bytes_; }

  // The offset in the slab of an address of the host.
  std::size_t offset_of(const void* data) const {
    const auto* address = static_cast<const std::byte*>(data);
    for (const Piece& piece : pieces_)
      if (address >= piece.begin && (address < piece.end() || address == piece.begin))
        return piece.offset + static_cast<std::size_t>(address - piece.begin);
    fail("an address outside of all tensors");
  }

  // From now on a kernel may touch nothing of the slab's first bytes but the pieces.
  void forbid_gaps(std::byte* slab) const {
    if (!__asan_poison_memory_region || !gpu().on_the_cpu) return;
    __asan_poison_memory_region(slab, bytes_.size());
    for (const Piece& piece : pieces_) __asan_unpoison_memory_region(slab + piece.offset, piece.bytes);
  }
  void allow_gaps(std::byte* slab) const {
    if (__asan_unpoison_memory_region && gpu().on_the_cpu) __asan_unpoison_memory_region(slab, bytes_.size());
  }

  // Copies the pieces back to where they came from; false when a byte between them changed.
  bool put_back() {
    for (const Piece& piece : pieces_) {
      if (piece.bytes == 0) continue;
      std::memcpy(piece.begin, bytes_.data() + piece.offset, piece.bytes);
      std::memset(bytes_.data() + piece.offset, static_cast<int>(pattern), piece.bytes);
    }
    return std::ranges::all_of(bytes_, [](std::byte b) { return b == pattern; });
  }

 private:
  std::vector<Piece> pieces_;
  std::vector<std::byte> bytes_;
};

Tensor bytes_at(std::size_t offset, std::size_t bytes) {
  return make_tensor(gpu().slab.data() + offset, shape(bytes), DType::u8);
}

// The workspace, full of NaN, and guard bytes after it. The image's guard bytes are in front of it.
class GuardedWorkspace {
 public:
  GuardedWorkspace(std::size_t offset, std::size_t bytes) : guard_(bytes_at(offset + bytes, guard)) {
    require(offset + bytes + guard <= gpu().slab.size(), "a case needs {} bytes of the GPU, there are {}",
            offset + bytes, gpu().slab.size());
    Ops& ops = *gpu().parts.ops;
    ops(FillArgs{.out = guard_, .value = static_cast<double>(pattern)});
    // Emulated kernels take long to fill the workspace of cuBLASLt; only our own kernels must not read uninitialised
    // memory.
    const std::size_t filled = gpu().on_the_cpu ? std::min(bytes, std::size_t{1} << 20) : bytes;
    if (filled > 0) ops(FillArgs{.out = bytes_at(offset, filled), .value = 255});
    ops.bind_workspace(gpu().slab.subspan(offset, bytes));
  }
  ~GuardedWorkspace() { gpu().parts.ops->bind_workspace({}); }
  GuardedWorkspace(const GuardedWorkspace&) = delete;
  GuardedWorkspace& operator=(const GuardedWorkspace&) = delete;

  bool intact() const {
    std::vector<std::byte> read(guard);
    gpu().parts.ops->to_host(guard_, read);
    return std::ranges::all_of(read, [](std::byte b) { return b == pattern; });
  }

 private:
  Tensor guard_;
};

}  // namespace

TestDevice test_device() { return test_device_slot(); }
void set_test_device(TestDevice where) { test_device_slot() = where; }

void use_plain_gemm() { only_plain_gemm = true; }

Ops& gpu_ops() { return *gpu().parts.ops; }
Device& gpu_device() { return *gpu().parts.device; }
void release_gpu() { gpu_slot().reset(); }

void call_on_gpu(std::span<Tensor* const> tensors, FunctionRef<void(Ops&)> call, std::int64_t shift) {
  Image image(tensors, shift);
  for (Tensor* tensor : tensors)
    if (*tensor) tensor->data = gpu().slab.data() + image.offset_of(tensor->data);

  PlanOps plan(*gpu().rules);
  call(plan);
  EXPECT_GE(plan.calls(), 1);
  Ops& ops = gpu_ops();
  const std::size_t image_bytes = image.bytes().size();
  const GuardedWorkspace workspace(image_bytes, plan.workspace_peak());
  ops.from_host(image.bytes(), bytes_at(0, image_bytes));
  // GEMMs are not prepared: choosing among their kernels by time takes long.
  const PlannedCalls& calls = plan.planned_calls();
  if (calls.gemms.empty() && calls.gemm_activations.empty() && calls.gemm_activation_backs.empty())
    ops.prepare(calls, {});
  ops.finish(ops.record());
  image.forbid_gaps(gpu().slab.data());
  call(ops);
  ops.finish(ops.record());
  image.allow_gaps(gpu().slab.data());
  ops.to_host(bytes_at(0, image_bytes), image.bytes());
  EXPECT_TRUE(workspace.intact()) << "written behind the planned workspace of " << plan.workspace_peak() << " bytes";
  EXPECT_TRUE(image.put_back()) << "written outside of the tensors";
}

void call_once(std::span<Tensor* const> tensors, FunctionRef<void(Ops&)> call) {
  if (test_device() == TestDevice::gpu) return call_on_gpu(tensors, call);
  const cpu::CpuWorkspaceRules rules(1);
  PlanOps plan(rules);
  call(plan);
  const std::size_t bytes = plan.workspace_peak();
  std::vector<std::byte> memory(bytes + alignment);
  void* begin = memory.data();
  std::size_t space = memory.size();
  std::align(alignment, bytes, begin, space);
  cpu::CpuOps ops(1, cpu::best_isa());
  ops.bind_workspace({static_cast<std::byte*>(begin), bytes});
  call(ops);
}

}  // namespace tera::test
