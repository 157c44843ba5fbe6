#include "tera/backend/cuda/cuda_ops.h"

#include <nvtx3/nvToolsExt.h>

#include "tera/backend/cuda/libraries/cublaslt.h"
#include "tera/backend/cuda/libraries/cudnn_attention.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/backend/cuda/workspace.h"
#include "tera/ops/attention.h"
#include "tera/ops/planned_calls.h"

namespace tera::cuda {
namespace {

constexpr std::size_t tickets_kept = 256;

int use_device(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  return device;
}

}  // namespace

CudaOps::CudaOps(const CudaOptions& options) : options_(options), device_(use_device(options.device)) {
  reserve_tickets(tickets_kept);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  cublaslt_ = std::make_unique<CublasLt>(options);
  attention_ = std::make_unique<CudnnAttention>(options, stream_);
}

CudaOps::~CudaOps() {
  cudaSetDevice(device_);
  cudaStreamSynchronize(stream_);
  for (auto event : events_) cudaEventDestroy(event);
  attention_.reset();
  cublaslt_.reset();
  cudaStreamDestroy(stream_);
}

const OpsTraits& CudaOps::traits() const { return cuda_traits; }

cudaEvent_t CudaOps::event_of(std::uint64_t id) const {
  const std::uint64_t newest = tickets_.load(std::memory_order_acquire);
  const bool known = id >= first_ticket_ && id <= newest && id + events_.size() > newest;
  require(known, "ticket {} is not among the last {}", id, events_.size());
  return events_[id % events_.size()];
}

// All events are created here, none in a step. Earlier tickets become invalid: their slots change.
void CudaOps::reserve_tickets(std::size_t count) {
  if (count <= events_.size()) return;
  while (events_.size() < count) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "cudaEventCreate");
    events_.push_back(event);
  }
  first_ticket_ = tickets_ + 1;
  constexpr std::size_t calls_per_copy = 16;  // at least
  to_host_.reserve_tickets(count / calls_per_copy);
  from_host_.reserve_tickets(count / calls_per_copy);
}

Ticket CudaOps::record() {
  const std::uint64_t id = tickets_.load(std::memory_order_relaxed) + 1;
  check(cudaEventRecord(events_[id % events_.size()], stream_), "cudaEventRecord");
  tickets_.store(id, std::memory_order_release);
  return {id, this};
}

void CudaOps::wait(Ticket ticket) {
  if (ticket.timeline == this || ticket.id == 0) return;
  if (const auto* other = dynamic_cast<const EventSource*>(ticket.timeline))
    wait_on_stream(stream_, other->event_of(ticket.id));
  else
    finish(ticket);
}

void CudaOps::finish(std::uint64_t id) {
  if (id == 0) return;
  wait_on_host(event_of(id), guard_, "an op on the GPU");
}

double CudaOps::milliseconds(Ticket from, Ticket to) {
  float result = 0;
  const auto event = [](Ticket ticket) {
    return dynamic_cast<const EventSource&>(*ticket.timeline).event_of(ticket.id);
  };
  check(cudaEventElapsedTime(&result, event(from), event(to)), "cudaEventElapsedTime");
  return result;
}

void CudaOps::prepare(const PlannedCalls& calls, std::span<std::byte> spare) {
  cublaslt_->prepare(unfused_gemms(calls), workspace_, spare, stream_);
  PlannedCalls left{.attentions = calls.attentions, .attention_backs = calls.attention_backs};
  std::erase_if(left.attention_backs, [&](const AttentionBackArgs& args) { return use_hopper(args); });
  attention_->prepare(left, workspace_.size());
}

std::string CudaOps::remarks() const { return cublaslt_->remarks() + attention_->remarks(); }

void CudaOps::begin_range(const char* name) { nvtxRangePushA(name); }
void CudaOps::end_range() { nvtxRangePop(); }

std::span<std::byte> CudaOps::workspace(std::size_t bytes) const {
  require(bytes <= workspace_.size(), "an op needs {} bytes of workspace, the plan reserved {}", bytes,
          workspace_.size());
  return workspace_.first(bytes);
}

kernels::Scalar scalar_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return kernels::Scalar::f32;
    case DType::bf16: return kernels::Scalar::bf16;
    case DType::f16: return kernels::Scalar::f16;
    default: fail("{} is no float type", name_of(dtype));
  }
}

}  // namespace tera::cuda
