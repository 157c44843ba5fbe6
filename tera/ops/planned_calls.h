#pragma once
#include <vector>

#include "tera/ops/attention.h"
#include "tera/ops/gemm.h"
#include "tera/ops/gemm_activation.h"

namespace tera {

// The calls of a dry run for which a backend selects kernels, each shape once; the tensors have no memory.
struct PlannedCalls {
  std::vector<GemmArgs> gemms;
  std::vector<GemmActivationArgs> gemm_activations;
  std::vector<GemmActivationBackArgs> gemm_activation_backs;
  std::vector<AttentionArgs> attentions;
  std::vector<AttentionBackArgs> attention_backs;

  // The calls of the same op.
  std::vector<GemmArgs>& of(const GemmArgs&) { return gemms; }
  std::vector<GemmActivationArgs>& of(const GemmActivationArgs&) { return gemm_activations; }
  std::vector<GemmActivationBackArgs>& of(const GemmActivationBackArgs&) { return gemm_activation_backs; }
  std::vector<AttentionArgs>& of(const AttentionArgs&) { return attentions; }
  std::vector<AttentionBackArgs>& of(const AttentionBackArgs&) { return attention_backs; }
};

}  // namespace tera
