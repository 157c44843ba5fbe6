// Stands in for cudnn_attention.cpp where the program is built without cuDNN: our own kernels take every call.
#include "tera/backend/cuda/libraries/cudnn_attention.h"
#include "tera/base/error.h"

namespace tera::cuda {

struct CudnnAttention::State {
  bool exact = false;
};

CudnnAttention::CudnnAttention(const CudaOptions& options, cudaStream_t)
    : state_(std::make_unique<State>(State{options.exact_attention})) {}
CudnnAttention::~CudnnAttention() = default;

bool CudnnAttention::supports(const AttentionArgs&) { return false; }
bool CudnnAttention::supports(const AttentionBackArgs&) { return false; }
void CudnnAttention::prepare(const PlannedCalls&, std::size_t) {}
void CudnnAttention::forward(const AttentionArgs&, std::span<std::byte>) { fail("built without cuDNN"); }
void CudnnAttention::backward(const AttentionBackArgs&, std::span<std::byte>) { fail("built without cuDNN"); }
std::size_t CudnnAttention::library_bytes(const AttentionArgs&) { return 0; }
std::size_t CudnnAttention::library_bytes(const AttentionBackArgs&) { return 0; }
std::string CudnnAttention::reason() const { return {}; }
std::string CudnnAttention::remarks() const {
  return state_->exact ? "" : "attention runs on kernels of our own: this program was built without cuDNN\n";
}

std::string cudnn_version() { return {}; }

}  // namespace tera::cuda
