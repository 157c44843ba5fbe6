#pragma once
// Ops that do nothing but add up what real ones would need: the step is rehearsed on these before memory is allocated.
// Arguments are checked as everywhere; no tensor's memory is touched.

#include <cstddef>
#include <cstdint>

#include "tera/ops/implement_ops.h"
#include "tera/ops/planned_calls.h"
#include "tera/ops/workspace.h"

namespace tera {

class PlanOps final : public ImplementOps<PlanOps> {
 public:
  explicit PlanOps(const WorkspaceRules& rules);
  ~PlanOps() override;

  std::size_t workspace_peak() const { return workspace_peak_; }  // the most that any call so far needs
  std::int64_t calls() const { return calls_; }
  // FLOPs of GEMMs and attention, a multiply-add being two. Attention counts what its mask and window let through
  // (half of a causal square); its backward is two forwards, whatever a kernel computes again. Packed documents are
  // counted as one, because their borders are in memory, and so are rows of grouped GEMMs, as many as the call says
  // or all.
  double flops() const { return flops_; }

  const PlannedCalls& planned_calls() const { return planned_calls_; }

  const OpsTraits& traits() const override { return rules_.traits(); }
  // Kept as one call: who computes it decides.
  bool fuses(const GemmActivationArgs&) const override { return true; }
  bool fuses(const GemmActivationBackArgs&) const override { return true; }
  using Ops::finish;
  void finish(std::uint64_t) override {}
  Ticket record() override {
    ++records_;
    return {};
  }
  std::size_t records() const { return records_; }  // so far
  void wait(Ticket) override {}
  double milliseconds(Ticket, Ticket) override { return 0; }
  void bind_workspace(std::span<std::byte>) override {}

  // What becomes of a call: see ImplementOps.
  template <class Args>
  void compute(const Args& args);

 private:
  void do_from_host(std::span<const std::byte>, const Tensor&) override { ++calls_; }
  void do_to_host(const Tensor&, std::span<std::byte>) override { ++calls_; }

  const WorkspaceRules& rules_;
  std::size_t workspace_peak_ = 0;
  std::int64_t calls_ = 0;
  std::size_t records_ = 0;
  double flops_ = 0;
  PlannedCalls planned_calls_;
};

}  // namespace tera
