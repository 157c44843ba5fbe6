#pragma once
// How the other parts of the emulation enqueue work on streams. A stream is a list of work, done in its order; which
// stream progresses when several can is the choice of CUDA_ON_CPU_STREAMS (options.h).
//
// Work may be done before the call that enqueues it returns, and by any thread of the host that waits: the caller must
// hold no lock that the work takes.

#include <cuda_runtime_api.h>

#include <functional>

#include "tools/cuda_on_cpu/block.h"

namespace cuda_on_cpu {

// A kernel; what the launch asks for is checked as the runtime of a GPU does, see cudaGetLastError.
void enqueue_kernel(cudaStream_t stream, Launch launch);

// Work of the host's, done at once when its turn comes.
cudaError_t enqueue_host(cudaStream_t stream, std::function<void()> work);

// Work that may have to wait for another process: `step` is called again and again, and other streams go on between
// two calls, until it says that it is done. It must not block.
// A stream that is captured into a graph refuses it: a graph has its work done again.
cudaError_t enqueue_steps(cudaStream_t stream, std::function<bool()> step);

// Starts a thread that progresses the streams while the host does other things: another process may wait for the work
// on them.
void start_progress_thread();

}  // namespace cuda_on_cpu
