#include "tera/backend/cuda/runtime/event_source.h"

#include <chrono>
#include <thread>

#include "tera/backend/cuda/runtime/cuda_error.h"

namespace tera::cuda {

void wait_on_stream(cudaStream_t stream, cudaEvent_t event) {
  if (event != nullptr) check(cudaStreamWaitEvent(stream, event), "cudaStreamWaitEvent");
}

// A waiting host spins for a while, then it yields its core between polls.
void wait_on_host(cudaEvent_t event, WaitGuard* guard, const char* what) {
  if (event == nullptr) return;
  if (guard == nullptr) return check(cudaEventSynchronize(event), what);
  constexpr int eager_looks = 1000;
  cudaError_t status = cudaErrorNotReady;
  for (int looks = 0; (status = cudaEventQuery(event)) == cudaErrorNotReady; ++looks) {
    guard->check();
    if (looks > eager_looks) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  cudaGetLastError();  // that it was not ready yet is no error
  if (status == cudaSuccess) guard->check();
  check(status, what);
}

}  // namespace tera::cuda
