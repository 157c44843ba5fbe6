#pragma once
// Full steps as one CUDA graph: the first runs call by call, which loads every kernel, as loading cannot be captured;
// the second is captured, and it and later ones are replays. They compute the same bits.

#include <memory>
#include <string>
#include <utility>

#include "tera/base/function_ref.h"
#include "tera/ops/ops.h"

namespace tera {

class StepGraph {
 public:
  // Before the first step. why_not: a reason that is known already; empty: none.
  void reset(bool wanted, const std::string& why_not);

  // Executes the calls of a step. `remake`: the attempt to capture has failed, perhaps in the middle of a step.
  void run(Ops& ops, bool full_step, FunctionRef<void()> calls, FunctionRef<void()> remake);

  // Whether steps are replayed, returned once when it is known; otherwise empty.
  std::string take_remark() { return std::exchange(remark_, {}); }

 private:
  void record(Ops& ops, FunctionRef<void()> calls, FunctionRef<void()> remake);

  enum class Recorded : std::uint8_t { not_yet, yes, never } recorded_ = Recorded::never;
  bool ran_full_step_ = false;  // call by call
  std::unique_ptr<Recording> recording_;
  std::string remark_;
};

}  // namespace tera
