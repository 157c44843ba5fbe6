#include "tera/backend/plan/plan_ops.h"

#include <algorithm>

#include "tera/ops/all_ops.h"

namespace tera {
namespace {

template <class Args>
double flops_of(const Args& args) {
  if constexpr (requires { args.flops(); })
    return args.flops();
  else
    return 0;
}

template <class Args>
void keep_each_shape_once(PlannedCalls& calls, const Args& args) {
  if constexpr (requires { args.has_shape_of(args); }) {
    auto& kept = calls.of(args);
    if (std::ranges::none_of(kept, [&](const Args& other) { return args.has_shape_of(other); })) kept.push_back(args);
  }
}

}  // namespace

// Here, where every op's arguments are known, since these make the virtual functions of all ops.
PlanOps::PlanOps(const WorkspaceRules& rules) : rules_(rules) {}
PlanOps::~PlanOps() = default;

template <class Args>
void PlanOps::compute(const Args& args) {
  static_assert(sizeof(Args) > 0, "its header is missing in all_ops.h");
  keep_each_shape_once(planned_calls_, args);
  workspace_peak_ = std::max(workspace_peak_, rules_.workspace(args));
  flops_ += flops_of(args);
  ++calls_;
}

}  // namespace tera
