#pragma once
// The workspace that a backend needs for a call, by formula, so that it is part of the memory plan. One call runs at a
// time, so the workspace of a queue is the largest of these.

#include <cstddef>

#include "tera/ops/op_list.h"
#include "tera/ops/traits.h"

namespace tera {

// One op's workspace in bytes: none, unless a backend overrides it.
template <class Args>
class WorkspaceSlot {
 public:
  virtual ~WorkspaceSlot() = default;
  virtual std::size_t workspace(const Args& /*args*/) const { return 0; }
};

template <class List>
class WorkspaceSlots;
template <class... Args>
class WorkspaceSlots<OpList<Args...>> : public WorkspaceSlot<Args>... {
 public:
  using WorkspaceSlot<Args>::workspace...;
};

class WorkspaceRules : public WorkspaceSlots<AllOps> {
 public:
  virtual const OpsTraits& traits() const = 0;

  using WorkspaceSlots<AllOps>::workspace;
  // What the GEMM needs, fused or not.
  std::size_t workspace(const GemmActivationArgs& args) const override;
  std::size_t workspace(const GemmActivationBackArgs& args) const override;
};

}  // namespace tera
