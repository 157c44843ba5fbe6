#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/runtime/cuda_error.h"

namespace tera::cuda {
namespace {

class Graph final : public Recording {
 public:
  Graph(cudaGraph_t recorded, cudaStream_t stream) : stream_(stream) {
    check(cudaGraphGetNodes(recorded, nullptr, &nodes_), "cudaGraphGetNodes");
    check(cudaGraphInstantiate(&graph_, recorded, 0), "cudaGraphInstantiate");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() override { cudaGraphExecDestroy(graph_); }
  void replay() override { check(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch"); }
  std::size_t size() const override { return nodes_; }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
  std::size_t nodes_ = 0;
};

}  // namespace

// Captures a CUDA graph from this thread's calls only: others may write checkpoints or prefetch batches meanwhile.
RecordingAttempt CudaOps::record_calls(const std::function<void()>& calls) {
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  RecordingAttempt attempt;
  recording_ = true;
  try {
    calls();
  } catch (const std::exception& error) {
    attempt.why_not = error.what();
  }
  recording_ = false;
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream_, &captured);
  const std::unique_ptr<CUgraph_st, decltype(&cudaGraphDestroy)> recorded(captured, &cudaGraphDestroy);
  if (ended != cudaSuccess) {
    cudaGetLastError();
    if (attempt.why_not.empty()) attempt.why_not = cudaGetErrorString(ended);
  }
  if (!attempt.why_not.empty()) return attempt;
  try {
    attempt.recording = std::make_unique<Graph>(recorded.get(), stream_);
  } catch (const std::exception& error) {  // no memory left for it
    attempt.why_not = error.what();
  }
  return attempt;
}

}  // namespace tera::cuda
