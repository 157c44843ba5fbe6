#pragma once
#include <nccl.h>

#include <string>

namespace cuda_on_cpu::nccl {

// Thrown where a call is refused; the functions of NCCL catch it, return the result and keep the text.
struct Refused {
  ncclResult_t result;
  std::string text;
};

}  // namespace cuda_on_cpu::nccl
