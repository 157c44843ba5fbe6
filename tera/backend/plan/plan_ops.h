#pragma once
// The backend of a dry run: it computes nothing and counts what a real backend would need. A step runs on it before
// memory is allocated. Arguments are checked as in every backend; no tensor's memory is touched.

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

  std::size_t workspace_peak() const { return workspace_peak_; }  // the maximum over calls so far
  std::int64_t calls() const { return calls_; }
  // FLOPs of GEMMs and attention, two per multiply-add. Attention counts unmasked pairs within the window (half of a
  // causal square); its backward counts as two forwards, without the recomputation in kernels. Packed documents count
  // as one sequence, because their offsets are in device memory. For the same reason a grouped GEMM counts
  // expected_rows, or all.
  double flops() const { return flops_; }

  const PlannedCalls& planned_calls() const { return planned_calls_; }

  const OpsTraits& traits() const override { return rules_.traits(); }
  // Recorded as one call: the real backend decides.
  bool fuses(const GemmActivationArgs&) const override { return true; }
  bool fuses(const GemmActivationBackArgs&) const override { return true; }
  using Ops::finish;
  void finish(std::uint64_t) override {}
  Ticket record() override {
    ++records_;
    return {};
  }
  std::size_t records() const { return records_; }  // number of calls of record()
  void wait(Ticket) override {}
  double milliseconds(Ticket, Ticket) override { return 0; }
  void bind_workspace(std::span<std::byte>) override {}

 private:
  template <class Self, class List>
  friend class ImplementEach;
  // What becomes of a call, see ImplementOps.
  template <class Args>
  void compute(const Args& args);

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
