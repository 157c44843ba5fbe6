#pragma once
#include <vector>

#include "tera/ops/attention.h"
#include "tera/ops/gemm.h"

namespace tera {

// The calls of a rehearsal for which a backend has choices to make, each shape once; the tensors have no memory.
struct PlannedCalls {
  std::vector<GemmArgs> gemms;
  std::vector<AttentionArgs> attentions;
  std::vector<AttentionBackArgs> attention_backs;
};

}  // namespace tera
