#include <algorithm>
#include <array>

#include "tera/nn/dispatch.h"
#include "tera/nn/tensor_parallel.h"

namespace tera {
namespace {

// Every rank sees the rows of all, and takes out those of its experts. How many these are stays on the device.
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

  void leave(Run& run, Dispatched& d, const Routes&, const Tensor& own) const override {
    d.of_f = start_rows(run, d, own);
  }

  Tensor arrive(Run& run, Dispatched& d) const override {
    const Tensor to = run.scratch.take(shape(d.rows(), d.of_f.to.dim(1)), d.of_f.to.dtype, "moe.rows");
    finish_rows(run, d, d.of_f, to);
    return to;
  }

  Travel start_rows(Run& run, const Dispatched&, const Tensor& own) const override {
    if (!all_.cuts_rows()) return {.from = own, .to = own, .there = {}};
    const Tensor all = run.scratch.take(shape(own.dim(0) * all_.size(), own.dim(1)), own.dtype, "moe.all_rows");
    return {.from = own, .to = all, .there = all_.group->all_gather(own, all, run.ops.record())};
  }

  void finish_rows(Run& run, const Dispatched& d, const Travel& travel, const Tensor& to) const override {
    run.ops.wait(travel.there);
    run.ops.permute({.x = travel.to, .sources = d.sources, .y = to, .topk = spec_.topk});
  }

  // The residual enters the sum over ranks once, with the first; that of cut rows is added after it.
  bool starts_with_residual() const override { return !all_.cuts_rows(); }

  Travel start_sum(Run& run, const Dispatched& d, const Tensor& rows, const Tensor& out,
                   const Tensor& residual) const override {
    const bool with_sum = starts_with_residual() && all_.rank() == 0;
    const Tensor partial = all_.room_for_partial(run, out, "moe.sums");
    run.ops.unpermute({.x = rows, .places = d.places, .y = partial, .residual = with_sum ? residual : Tensor{}});
    return {.from = partial, .to = out, .there = all_.reduce(run, partial, out)};
  }

  void finish_sum(Run& run, const Dispatched&, const Travel& travel, const Tensor& out,
                  const Tensor& residual) const override {
    run.ops.wait(travel.there);
    if (starts_with_residual() || !residual) return;
    const std::array sources{out, residual};
    run.ops.combine({.sources = sources, .out = out});
  }

  // Each rank has those of its experts, and its features' terms.
  Travel start_weight_gradients(Run& run, const Dispatched&, const Tensor& arrived) const override {
    Tensor own = arrived;
    if (all_.cuts_rows())
      own = run.scratch.take(shape(arrived.dim(0) / all_.size(), spec_.topk), DType::f32, "moe.dweights");
    return {.from = arrived, .to = own, .there = all_.reduce(run, arrived, own)};
  }

  Tensor finish_weight_gradients(Run& run, const Dispatched&, const Travel& travel) const override {
    run.ops.wait(travel.there);
    return travel.to;
  }

 private:
  void group_exact(Run& run, Dispatched& d, const Tensor& experts) const {
    const std::int64_t tokens = experts.dim(0), room = this->room(run, tokens);
    d.usual_rows = std::min(room, static_cast<std::int64_t>(even_share(tokens)));
    Tensor overflow;
    if (room < worst_case(tokens)) overflow = run.scratch.take(shape(1), DType::i32, "moe.overflow");
    group(run, d, room, {.experts = experts, .overflow = overflow});
    if (!overflow) return;
    const std::array most{run.mb.expert_overflow, overflow};
    run.ops.combine({.sources = most, .out = most[0], .how = Reduce::max});
  }

  void group_padded(Run& run, Dispatched& d, const Tensor& experts) const {
    const std::int64_t capacity =
        padded_rows(spec_.expert_capacity, count(experts.shape), spec_.experts, experts.dim(0));
    d.usual_rows = capacity * held_.size();
    group(run, d, d.usual_rows,
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
