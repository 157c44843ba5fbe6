#include <algorithm>
#include <array>

#include "tera/nn/ffn/dispatch.h"
#include "tera/nn/tensor_parallel.h"
#include "tera/ops/combine.h"
#include "tera/ops/expert_rows.h"

namespace tera {
namespace {

// All-gather dispatch: every rank gathers the rows of all, and takes out those of its experts. How many these are stays
// on the device.
class GatherDispatch final : public Dispatch {
 public:
  GatherDispatch(const DispatchSpec& spec, const ExpertParallel& parallel)
      : Dispatch(spec, parallel), all_{.group = parallel.group, .sequence = !parallel.same_rows} {}

  void begin(Run& run, Dispatched& d, const Routes& routes, const Tensor&) const override {
    d.weights = all_.gather(run, routes.weights, run.stash.arena(Life::f_to_b), "moe.all_weights");
    ScratchScope scope(run.scratch);
    const Tensor experts = all_.gather(run, routes.experts, run.scratch, "moe.all_experts");
    if (spec_.expert_capacity > 0)
      group_padded(run, d, experts);
    else
      group_exact(run, d, experts);
  }

  void start_dispatch(Run& run, Dispatched& d, const Routes&, const Tensor& local) const override {
    d.forward_rows = start_rows(run, d, local);
  }

  Tensor finish_dispatch(Run& run, Dispatched& d) const override {
    const Tensor to = run.scratch.take(shape(d.rows(), d.forward_rows.to.dim(1)), d.forward_rows.to.dtype, "moe.rows");
    finish_rows(run, d, d.forward_rows, to);
    return to;
  }

  InFlightTransfer start_rows(Run& run, const Dispatched&, const Tensor& local) const override {
    if (!all_.cuts_rows()) return {.from = local, .to = local, .arrival = {}};
    const Tensor all = run.scratch.take(shape(local.dim(0) * all_.size(), local.dim(1)), local.dtype, "moe.all_rows");
    return {.from = local, .to = all, .arrival = all_.group->all_gather(local, all, run.ops.record())};
  }

  void finish_rows(Run& run, const Dispatched& d, const InFlightTransfer& transfer, const Tensor& to) const override {
    run.ops.wait(transfer.arrival);
    run.ops(PermuteArgs{.x = transfer.to, .sources = d.sources, .y = to, .topk = spec_.topk});
  }

  // The residual enters the all-reduce once, with the first rank; with a reduce-scatter it is added afterwards.
  bool starts_with_residual() const override { return !all_.cuts_rows(); }

  InFlightTransfer start_combine(Run& run, const Dispatched& d, const Tensor& rows, const Tensor& out,
                                 const Tensor& residual) const override {
    const bool with_sum = starts_with_residual() && all_.rank() == 0;
    const Tensor partial = all_.partial_buffer(run, out, "moe.sums");
    run.ops(UnpermuteArgs{.x = rows, .places = d.places, .y = partial, .residual = with_sum ? residual : Tensor{}});
    return {.from = partial, .to = out, .arrival = all_.reduce(run, partial, out)};
  }

  void finish_combine(Run& run, const Dispatched&, const InFlightTransfer& transfer, const Tensor& out,
                      const Tensor& residual) const override {
    run.ops.wait(transfer.arrival);
    if (starts_with_residual() || !residual) return;
    const std::array sources{out, residual};
    run.ops(CombineArgs{.sources = sources, .out = out});
  }

  // Each rank has the gradients of its experts' weights, in etp the terms of its features.
  InFlightTransfer start_weight_gradients(Run& run, const Dispatched&, const Tensor& arrived) const override {
    Tensor local = arrived;
    if (all_.cuts_rows())
      local = run.scratch.take(shape(arrived.dim(0) / all_.size(), spec_.topk), DType::f32, "moe.dweights");
    return {.from = arrived, .to = local, .arrival = all_.reduce(run, arrived, local)};
  }

  Tensor finish_weight_gradients(Run& run, const Dispatched&, const InFlightTransfer& transfer) const override {
    run.ops.wait(transfer.arrival);
    return transfer.to;
  }

 private:
  void group_exact(Run& run, Dispatched& d, const Tensor& experts) const {
    const std::int64_t tokens = experts.dim(0), capacity = row_capacity(run, tokens);
    d.expected_rows = std::min(capacity, static_cast<std::int64_t>(even_share(tokens)));
    Tensor overflow;
    if (capacity < worst_case(tokens)) overflow = run.scratch.take(shape(1), DType::i32, "moe.overflow");
    group(run, d, capacity, {.experts = experts, .overflow = overflow});
    if (!overflow) return;
    const std::array overflows{run.mb.expert_overflow, overflow};
    run.ops(CombineArgs{.sources = overflows, .out = overflows[0], .how = Reduce::max});
  }

  void group_padded(Run& run, Dispatched& d, const Tensor& experts) const {
    const std::int64_t capacity =
        padded_rows(spec_.expert_capacity, count(experts.shape), spec_.experts, experts.dim(0));
    d.expected_rows = capacity * local_experts_.size();
    group(run, d, d.expected_rows,
          {.experts = experts,
           .capacity = capacity,
           .weights = spec_.drop == TokenDropPolicy::probs ? d.weights : Tensor{}});
  }

  TensorParallel all_;
};

}  // namespace

std::unique_ptr<Dispatch> make_gather_dispatch(const DispatchSpec& spec, const ExpertParallel& parallel) {
  return std::make_unique<GatherDispatch>(spec, parallel);
}

}  // namespace tera
