#include "tera/backend/cuda/cuda_ops.h"

#include <nvtx3/nvToolsExt.h>

#include "tera/backend/cuda/cublaslt.h"
#include "tera/backend/cuda/cuda_error.h"
#include "tera/backend/cuda/cudnn_attention.h"
#include "tera/backend/cuda/workspace.h"

namespace tera::cuda {
namespace {

constexpr std::size_t tickets_kept = 1 << 16;  // more than a profile of one step records

}  // namespace

CudaOps::CudaOps(const CudaOptions& options) : options_(options), events_(tickets_kept, nullptr) {
  check(cudaSetDevice(options.device), "cudaSetDevice");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  products_ = std::make_unique<CublasLt>(options);
  attention_ = std::make_unique<CudnnAttention>(options, stream_);
}

CudaOps::~CudaOps() {
  cudaStreamSynchronize(stream_);
  for (auto event : events_)
    if (event) cudaEventDestroy(event);
  attention_.reset();
  products_.reset();
  cudaStreamDestroy(stream_);
}

const OpsTraits& CudaOps::traits() const { return cuda_traits; }

cudaEvent_t CudaOps::event_of(Ticket ticket) {
  require(ticket.id <= tickets_ && ticket.id + events_.size() > tickets_, "ticket {} is older than {} others",
          ticket.id, events_.size());
  return events_[ticket.id % events_.size()];
}

Ticket CudaOps::record() {
  const Ticket ticket{++tickets_};
  cudaEvent_t& event = events_[ticket.id % events_.size()];
  if (!event) check(cudaEventCreate(&event), "cudaEventCreate");
  check(cudaEventRecord(event, stream_), "cudaEventRecord");
  return ticket;
}

void CudaOps::finish(Ticket ticket) {
  if (ticket.id == 0) return;
  check(cudaEventSynchronize(event_of(ticket)), "an op on the GPU");
}

double CudaOps::milliseconds(Ticket from, Ticket to) {
  float result = 0;
  check(cudaEventElapsedTime(&result, event_of(from), event_of(to)), "cudaEventElapsedTime");
  return result;
}

void CudaOps::prepare(const PlannedCalls& calls, std::span<std::byte> spare) {
  products_->prepare(calls.gemms, workspace_, spare, stream_);
  attention_->prepare(calls, workspace_.size());
}

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
