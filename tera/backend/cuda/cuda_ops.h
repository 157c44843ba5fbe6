#pragma once
// Ops on one GPU: one compute stream (and one copy stream each way), cuBLASLt for GEMMs, cuDNN for attention, kernels
// of our own for the rest. One file per family implements the members; device code is in kernels/.

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <vector>

#include "tera/backend/cuda/kernels/types.cuh"
#include "tera/backend/cuda/runtime/copy_stream.h"
#include "tera/backend/cuda/runtime/event_source.h"
#include "tera/backend/cuda/runtime/make_cuda.h"
#include "tera/backend/cuda/runtime/staging_ring.h"
#include "tera/base/error.h"
#include "tera/ops/implement_ops.h"

namespace tera::cuda {

class CublasLt;        // cublaslt.h
class CudnnAttention;  // cudnn_attention.h

class CudaOps final : public ImplementOps<CudaOps>, public EventSource {
 public:
  explicit CudaOps(const CudaOptions& options);
  ~CudaOps() override;

  cudaStream_t stream() const { return stream_; }
  int device() const { return device_; }
  cudaEvent_t event_of(std::uint64_t id) const override;  // other queues call it, too
  // The guard is polled whenever the host waits for this queue; null: none. There is one at a time.
  void guard_waits(WaitGuard* guard) {
    require(guard == nullptr || guard_ == nullptr, "a queue of the GPU joins ranks that it has joined already");
    guard_ = guard;
  }

  Ticket record() override;
  void wait(Ticket ticket) override;
  using Ops::finish;
  void finish(std::uint64_t id) override;
  void reserve_tickets(std::size_t count) override;
  double milliseconds(Ticket from, Ticket to) override;
  const OpsTraits& traits() const override;
  void bind_workspace(std::span<std::byte> workspace) override { workspace_ = workspace; }
  void prepare(const PlannedCalls& calls, std::span<std::byte> spare) override;
  RecordingAttempt record_calls(const std::function<void()>& calls) override;  // graph.cpp
  std::string remarks() const override;
  bool fuses(const GemmActivationArgs& args) const override;  // gemm_activation.cpp
  bool fuses(const GemmActivationBackArgs& args) const override;
  void begin_range(const char* name) override;
  void end_range() override;

  // Whether our kernels for Hopper compute the call.
  bool use_hopper(const AttentionBackArgs& args) const;  // attention.cpp

 private:
  template <class Self, class List>
  friend class tera::ImplementEach;
  // One op, see ImplementOps; specialised in the file of its family.
  template <class Args>
  void compute(const Args& args);
  void do_from_host(std::span<const std::byte> host, const Tensor& tensor) override;
  void do_to_host(const Tensor& tensor, std::span<std::byte> host) override;
  void do_to_host_later(const Tensor& tensor, std::span<std::byte> host) override;
  CopyPoints do_to_host_overlapped(const HostCopyArgs& args) override;
  CopyPoints do_from_host_overlapped(const HostCopyArgs& args) override;

  bool may_fuse(const GemmArgs& args, std::int64_t min_tiles) const;  // gemm_activation.cpp
  std::vector<GemmArgs> unfused_gemms(const PlannedCalls& calls) const;

  // The first `bytes` of the workspace; throws when the plan asked for less.
  std::span<std::byte> workspace(std::size_t bytes) const;

  CudaOptions options_;
  int device_;  // initialised before everything that is created on it
  cudaStream_t stream_ = nullptr;
  StagingRing staging_;
  bool recording_ = false;  // calls are captured into a CUDA graph, not executed
  CopyStream to_host_, from_host_;
  std::span<std::byte> workspace_;
  std::vector<cudaEvent_t> events_;  // a ring: a ticket's event is at id modulo the size
  std::uint64_t first_ticket_ = 1;
  std::atomic<std::uint64_t> tickets_ = 0;  // written here, read by queues of other threads
  WaitGuard* guard_ = nullptr;
  std::unique_ptr<CublasLt> cublaslt_;
  std::unique_ptr<CudnnAttention> attention_;
};

// The kernels' name for a float dtype.
kernels::Scalar scalar_of(DType dtype);

}  // namespace tera::cuda
