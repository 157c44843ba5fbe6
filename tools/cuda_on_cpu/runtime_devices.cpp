// Devices and their properties, errors, what kernels may ask for.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tools/cuda_on_cpu/options.h"
#include "tools/cuda_on_cpu/runtime.h"
#include "tools/cuda_on_cpu/shared_memory.h"
#include "tools/cuda_on_cpu/stream.h"

namespace cuda_on_cpu {
namespace {

constexpr int processors = 4, major = 9, minor = 0;

struct HostThread {
  cudaError_t last_error = cudaSuccess;
  int device = 0;
};
HostThread& this_thread() {
  thread_local HostThread state;
  return state;
}

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorText error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "not permitted in this state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "not supported by the emulated device"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "not permitted while a stream is captured"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated", "the capture failed before"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit", "the default stream would wait for a capture"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation", "a capture would wait for what is outside"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread", "another thread began the capture"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent", "the event was last recorded in a capture"},
};

const ErrorText* find_text(cudaError_t error) {
  for (const ErrorText& text : error_texts)
    if (text.error == error) return &text;
  return nullptr;
}

bool is_device(int device) { return device >= 0 && device < options().devices; }

bool is_valid(dim3 grid, dim3 block) {
  const auto threads = static_cast<std::uint64_t>(block.x) * block.y * block.z;
  const bool valid_block = block.x <= 1024 && block.y <= 1024 && block.z <= 64 && threads > 0 && threads <= 1024;
  const bool valid_grid = grid.x <= 0x7fffffff && grid.y <= 0xffff && grid.z <= 0xffff;
  return valid_block && valid_grid && grid.x > 0 && grid.y > 0 && grid.z > 0;
}

// Where a launch does not name its kernel: the most that any was given.
std::size_t shared_limit(const void* function) {
  std::size_t limit = default_shared_bytes;
  for (const auto& [kernel, bytes] : machine().shared_limits) {
    if (kernel == function) return static_cast<std::size_t>(bytes);
    if (!function) limit = std::max(limit, static_cast<std::size_t>(bytes));
  }
  return limit;
}

}  // namespace

cudaError_t fail(cudaError_t error) { return this_thread().last_error = error; }

int current_device() { return this_thread().device; }

void enqueue_kernel(cudaStream_t stream, Launch launch) {
  Lock lock = lock_machine();
  CUstream_st* const found = find_stream(stream);
  if (!found || found->device != current_device()) {
    fail(cudaErrorInvalidResourceHandle);
  } else if (!is_valid(launch.grid, launch.block)) {
    fail(cudaErrorInvalidConfiguration);
  } else if (launch.shared_bytes > shared_limit(launch.function)) {
    fail(cudaErrorInvalidValue);
  } else {
    enqueue(lock, *found, [launch = std::move(launch)] {
      run(launch);
      return true;
    });
  }
}

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(this_thread().last_error, cudaSuccess); }

cudaError_t cudaPeekAtLastError() { return this_thread().last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* const found = find_text(error);
  return found ? found->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* const found = find_text(error);
  return found ? found->text : "unrecognized error code";
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (!version) return fail(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (!count) return fail(cudaErrorInvalidValue);
  *count = options().devices;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  this_thread().device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (!device) return fail(cudaErrorInvalidValue);
  *device = this_thread().device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!properties) return fail(cudaErrorInvalidValue);
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "emulated on the CPU");
  std::memcpy(properties->uuid.bytes, "emulated", 8);
  std::memcpy(properties->uuid.bytes + 8, &device, sizeof device);  // tells GPUs of one machine apart
  properties->totalGlobalMem = options().memory_bytes;
  properties->sharedMemPerBlock = default_shared_bytes;
  properties->sharedMemPerBlockOptin = max_shared_bytes;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->major = major;
  properties->minor = minor;
  properties->multiProcessorCount = processors;
  properties->unifiedAddressing = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!value) return fail(cudaErrorInvalidValue);
  if (!is_device(device)) return fail(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = processors; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = major; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = minor; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = default_shared_bytes; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = max_shared_bytes; return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; return cudaSuccess;
    case cudaDevAttrWarpSize: *value = 32; return cudaSuccess;
    default: return fail(cudaErrorInvalidValue);
  }
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return fail(cudaErrorNotSupported);
  if (!function || value < 0 || value > static_cast<int>(max_shared_bytes)) return fail(cudaErrorInvalidValue);
  const Lock lock = lock_machine();
  machine().shared_limits[function] = value;
  return cudaSuccess;
}

// Attributes of code without what capability 9.0 added: the kernels here are compiled without __CUDA_ARCH__.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  if (!attributes || !function) return fail(cudaErrorInvalidValue);
  *attributes = {};
  attributes->binaryVersion = attributes->ptxVersion = 80;
  attributes->maxThreadsPerBlock = 1024;
  const Lock lock = lock_machine();
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(shared_limit(function));
  return cudaSuccess;
}

// Its functions are the Hopper kernels' way to tensor maps, which are not emulated.
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  if (function) *function = nullptr;
  if (found) *found = cudaDriverEntryPointSymbolNotFound;
  return fail(cudaErrorNotSupported);
}

}  // extern "C"

}  // namespace cuda_on_cpu
