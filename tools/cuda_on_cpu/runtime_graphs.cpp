// CUDA graphs: the work that one stream was given while it was captured, to be replayed on a stream.
#include <utility>

#include "tools/cuda_on_cpu/runtime.h"

namespace cuda_on_cpu {
namespace {

bool restricts_this_thread(const Capture& capture) {
  switch (capture.mode) {
    case cudaStreamCaptureModeGlobal: return true;
    case cudaStreamCaptureModeThreadLocal: return capture.thread == std::this_thread::get_id();
    default: return false;
  }
}

}  // namespace

cudaError_t invalidate(CUstream_st& stream, cudaError_t error) {
  stream.capture->invalid = true;
  return fail(error);
}

cudaError_t refuse_if_capturing() {
  cudaError_t status = cudaSuccess;
  for (const auto& stream : machine().streams)
    if (stream->capture && restricts_this_thread(*stream->capture))
      status = invalidate(*stream, cudaErrorStreamCaptureUnsupported);
  return status;
}

cudaError_t refuse_if_device_captured(int device) {
  cudaError_t status = cudaSuccess;
  for (const auto& stream : machine().streams)
    if (stream->capture && stream->device == device) status = invalidate(*stream, cudaErrorStreamCaptureUnsupported);
  return status;
}

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Lock lock = lock_machine();
  CUstream_st* const found = find_stream(stream);
  if (!found) return fail(cudaErrorInvalidResourceHandle);
  if (found == &default_stream(found->device)) return fail(cudaErrorStreamCaptureUnsupported);
  if (found->capture) return fail(cudaErrorIllegalState);
  found->capture = std::make_unique<Capture>(
      Capture{.id = ++machine().captures, .mode = mode, .thread = std::this_thread::get_id()});
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock = lock_machine();
  CUstream_st* const found = find_stream(stream);
  if (!found) return fail(cudaErrorInvalidResourceHandle);
  if (!graph) return fail(cudaErrorInvalidValue);
  *graph = nullptr;
  if (!found->capture) return fail(cudaErrorIllegalState);
  if (found->capture->mode != cudaStreamCaptureModeRelaxed && found->capture->thread != std::this_thread::get_id())
    return invalidate(*found, cudaErrorStreamCaptureWrongThread);
  const std::unique_ptr<Capture> capture = std::move(found->capture);
  if (capture->invalid) return fail(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(capture->nodes)};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock = lock_machine();
  const CUstream_st* const found = find_stream(stream);
  if (!found) return fail(cudaErrorInvalidResourceHandle);
  if (!status) return fail(cudaErrorInvalidValue);
  *status = !found->capture           ? cudaStreamCaptureStatusNone
            : found->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

// Handles of single nodes lead nowhere here, so only their number is returned.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  if (!graph || !count) return fail(cudaErrorInvalidValue);
  if (nodes) return fail(cudaErrorNotSupported);
  *count = graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  if (!executable || !graph) return fail(cudaErrorInvalidValue);
  if (flags != 0) return fail(cudaErrorNotSupported);
  *executable = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  Lock lock = lock_machine();
  CUstream_st* const found = find_stream(stream);
  if (!executable || !found) return fail(cudaErrorInvalidResourceHandle);
  for (const Step& node : executable->nodes)
    if (const cudaError_t status = append(*found, {node}); status != cudaSuccess) return status;
  progress_after_append(lock);
  return cudaSuccess;
}

// Launches that are still on a stream have their own copies.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  if (!executable) return fail(cudaErrorInvalidValue);
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (!graph) return fail(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}

}  // extern "C"

}  // namespace cuda_on_cpu
