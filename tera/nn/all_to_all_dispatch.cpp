#include <algorithm>

#include "tera/base/error.h"
#include "tera/nn/dispatch.h"

namespace tera {
namespace {

// Rows travel to the ranks that have their experts and to no others.
//
//   own rows [t,H] --permute--> [t K,H] in order of experts, so of ranks --all_to_all over ep--> [N,H] as they came
//   --permute--> [R,H] in order of this rank's experts
//
// Ranks of etp each got rows of their own for the same experts, and hand them round; the sums of what they make of them
// go back the same way. The host has to know how many rows travel: it reads that once in F, while the device sorts the
// rows and computes the shared expert. Where each expert takes so many rows of a rank and no more, nobody has to ask.
class AllToAllDispatch final : public Dispatch {
 public:
  using Dispatch::Dispatch;

  Dispatched make() const override {
    Dispatched d;
    d.leaving.resize(static_cast<std::size_t>(ep().size()));
    d.coming.resize(d.leaving.size());
    d.regions.resize(static_cast<std::size_t>(etp_size()) + 1);
    return d;
  }

  void begin(Run& run, Dispatched& d, const Routes& routes, const Tensor& own) const override {
    const bool padded = spec_.expert_capacity > 0;
    const std::int64_t leaving = padded ? spec_.experts * slots(routes) : count(routes.experts.shape);
    d.home_sources = run.stash.take(Life::f_to_w, shape(leaving), DType::i32, "moe.home_sources");
    d.home_places = run.stash.take(Life::f_to_b, routes.experts.shape, DType::i32, "moe.home_places");
    if (padded)
      fill_slots(run, d, routes);
    else
      read_counts(run, d, routes.experts);
    d.leaving_rows = run.scratch.take(shape(leaving, own.dim(1)), own.dtype, "moe.leaving");  // while the host waits
    run.ops.permute({.x = own, .sources = d.home_sources, .y = d.leaving_rows, .topk = spec_.topk});
  }

  void leave(Run& run, Dispatched& d, const Routes& routes, const Tensor& own) const override {
    const std::int64_t tokens = routes.experts.dim(0) * all_ranks().size();
    const bool padded = spec_.expert_capacity > 0;
    const std::int64_t room = padded ? d.home_sources.dim(0) * etp_size() : this->room(run, tokens);
    if (padded || run.scratch.is_measuring()) {
      plan_even_load(d);
    } else {
      run.ops.finish(d.counts_read);
      check_room(run.mb.expert_offsets, room, even_share(tokens));
      count_rows(d, run.mb.expert_offsets);
    }
    d.usual_rows = padded ? room : std::min(room, static_cast<std::int64_t>(even_share(tokens)));
    d.weights = run.stash.take(Life::f_to_b, shape(room, 1), DType::f32, "moe.all_weights");
    d.choices = run.scratch.take(shape(room, 1), DType::i32, "moe.all_experts");
    d.of_f = {
        .from = d.leaving_rows, .to = run.scratch.take(shape(room, own.dim(1)), own.dtype, "moe.came"), .there = {}};
    d.weights_there = go(run, d, as_column(routes.weights), d.home_sources, 1, d.weights);
    if (padded) {
      const Tensor numbers = numbers_from_0(run, d.home_sources.dim(0));  // slot s is of expert s / slots
      d.choices_there = go(run, d, as_column(numbers.rows(0, spec_.experts)), numbers, slots(routes), d.choices);
    } else {
      run.ops.fill({.out = d.choices, .value = -1});  // of rows that did not come
      d.choices_there = go(run, d, as_column(routes.experts), d.home_sources, 1, d.choices);
    }
    d.of_f.there = send(run, d, d.of_f.from, d.of_f.to);
  }

  Tensor arrive(Run& run, Dispatched& d) const override {
    run.ops.wait(d.choices_there);
    group(run, d, d.choices.dim(0), {.experts = d.choices});
    const Tensor to = run.scratch.take(d.of_f.to.shape, d.of_f.to.dtype, "moe.rows");
    finish_rows(run, d, d.of_f, to);
    run.ops.wait(d.weights_there);
    return to;
  }

  Travel start_rows(Run& run, const Dispatched& d, const Tensor& own) const override {
    const Tensor came = run.scratch.take(shape(d.rows(), own.dim(1)), own.dtype, "moe.came");
    const Tensor leaving = run.scratch.take(shape(d.home_sources.dim(0), own.dim(1)), own.dtype, "moe.leaving");
    run.ops.permute({.x = own, .sources = d.home_sources, .y = leaving, .topk = spec_.topk});
    return {.from = leaving, .to = came, .there = send(run, d, leaving, came)};
  }

  void finish_rows(Run& run, const Dispatched& d, const Travel& travel, const Tensor& to) const override {
    run.ops.wait(travel.there);
    run.ops.permute({.x = travel.to, .sources = d.sources, .y = to});
  }

  Travel start_sum(Run& run, const Dispatched& d, const Tensor& rows, const Tensor& out, const Tensor&) const override {
    const Tensor home = run.scratch.take(shape(d.home_sources.dim(0), out.dim(1)), out.dtype, "moe.home");
    const Tensor came = run.scratch.take(rows.shape, rows.dtype, "moe.came");
    const std::int64_t arrived = d.regions.back();
    run.ops.unpermute({.x = rows, .places = d.places.rows(0, arrived), .y = came.rows(0, arrived), .residual = {}});
    return {.from = came, .to = home, .there = send_back(run, d, came, home)};
  }

  void finish_sum(Run& run, const Dispatched& d, const Travel& travel, const Tensor& out,
                  const Tensor& residual) const override {
    run.ops.wait(travel.there);
    run.ops.unpermute({.x = travel.to, .places = d.home_places, .y = out, .residual = residual});
  }

  Travel start_weight_gradients(Run& run, const Dispatched& d, const Tensor& arrived) const override {
    const Tensor home = run.scratch.take(shape(d.home_sources.dim(0), 1), DType::f32, "moe.home_dweights");
    return {.from = arrived, .to = home, .there = send_back(run, d, arrived, home)};
  }

  Tensor finish_weight_gradients(Run& run, const Dispatched& d, const Travel& travel) const override {
    const Tensor own = run.scratch.take(d.home_places.shape, DType::f32, "moe.dweights");
    run.ops.wait(travel.there);
    run.ops.unpermute({.x = travel.to, .places = as_column(d.home_places), .y = as_column(own), .residual = {}});
    return own;
  }

 private:
  Comm& ep() const { return *parallel_.ep; }
  Comm& all_ranks() const { return *parallel_.group; }
  int etp_size() const { return parallel_.etp ? parallel_.etp->size() : 1; }
  int etp_rank() const { return parallel_.etp ? parallel_.etp->rank() : 0; }

  static Tensor as_column(const Tensor& x) { return x.view(shape(count(x.shape), 1)); }

  // Sorts own choices by expert, and starts to bring to the host how many each rank has for each.
  void read_counts(Run& run, Dispatched& d, const Tensor& experts) const {
    ScratchScope scope(run.scratch);
    const Tensor offsets = run.scratch.take(shape(spec_.experts + 1), DType::i32, "moe.home_offsets");
    const Tensor all = run.scratch.take(shape(all_ranks().size() * (spec_.experts + 1)), DType::i32, "moe.all_offsets");
    run.ops.group_rows({.experts = experts, .offsets = offsets, .sources = d.home_sources, .places = d.home_places});
    run.ops.wait(all_ranks().all_gather(offsets, all, run.ops.record()));
    if (!run.scratch.is_measuring()) {
      const auto host = std::as_writable_bytes(run.mb.expert_offsets);
      require(host.size() == all.bytes(), "offsets of experts: {} bytes on the host for {}", host.size(), all.bytes());
      run.ops.to_host_later(all, host);
    }
    d.counts_read = run.ops.record();
  }

  // Where rows that are too many are dropped: those of own tokens that each expert takes.
  std::int64_t slots(const Routes& routes) const {
    return padded_rows(spec_.expert_capacity, count(routes.experts.shape), spec_.experts, routes.experts.dim(0));
  }

  // Own choices by expert, as many for each as it takes: then no number has to be read.
  void fill_slots(Run& run, const Dispatched& d, const Routes& routes) const {
    ScratchScope scope(run.scratch);
    run.ops.group_rows({.experts = routes.experts,
                        .offsets = run.scratch.take(shape(spec_.experts + 1), DType::i32, "moe.home_offsets"),
                        .sources = d.home_sources,
                        .places = d.home_places,
                        .capacity = slots(routes),
                        .weights = spec_.drop == TokenDropPolicy::probs ? routes.weights : Tensor{}});
  }

  // i32 [count] 0, 1, ...: the order of tokens that all choose the same.
  Tensor numbers_from_0(Run& run, std::int64_t count) const {
    const Tensor numbers = run.scratch.take(shape(count), DType::i32, "moe.slots");
    ScratchScope scope(run.scratch);
    const Tensor same = run.scratch.take(shape(count, 1), DType::i32, "moe.slots");
    run.ops.fill({.out = same, .value = 0});
    run.ops.group_rows({.experts = same,
                        .offsets = run.scratch.take(shape(2), DType::i32, "moe.slots"),
                        .sources = numbers,
                        .places = run.scratch.take(same.shape, DType::i32, "moe.slots")});
    return numbers;
  }

  // What a rehearsal knows, and what is so where all sizes are fixed: each rank of ep gets as many rows, and as many
  // come.
  void plan_even_load(Dispatched& d) const {
    const std::int64_t ranks = ep().size(), choices = d.home_sources.dim(0);
    for (std::int64_t r = 0; r < ranks; ++r)
      d.leaving[static_cast<std::size_t>(r)] = d.coming[static_cast<std::size_t>(r)] =
          choices * (r + 1) / ranks - choices * r / ranks;
    for (std::size_t i = 0; i < d.regions.size(); ++i) d.regions[i] = static_cast<std::int64_t>(i) * choices;
  }

  // offsets [ep][etp][E+1]: of each rank's own rows, in order of experts. The rows of one for those of a rank of ep.
  std::int64_t rows_between(std::span<const std::int32_t> offsets, std::int64_t from_ep, std::int64_t from_etp,
                            std::int64_t to_ep) const {
    const std::int64_t held = held_.size();
    const auto at = static_cast<std::size_t>((from_ep * etp_size() + from_etp) * (spec_.experts + 1) + to_ep * held);
    return offsets[at + static_cast<std::size_t>(held)] - offsets[at];
  }

  // All ranks that share these experts look at all of them, so that they tell the same.
  void check_room(std::span<const std::int32_t> offsets, std::int64_t room, double even) const {
    std::int64_t fullest = 0, most = 0;
    for (std::int64_t to = 0; to < ep().size(); ++to) {
      std::int64_t rows = 0;
      for (std::int64_t from = 0; from < ep().size(); ++from)
        for (std::int64_t i = 0; i < etp_size(); ++i) rows += rows_between(offsets, from, i, to);
      if (rows > most) {
        fullest = to;
        most = rows;
      }
    }
    if (most > room)
      fail_no_room({.rank_capacity = spec_.rank_capacity,
                    .rank = parallel_.first_rank + fullest * etp_size(),
                    .block = spec_.name,
                    .came = most,
                    .room = room,
                    .even = even});
  }

  void count_rows(Dispatched& d, std::span<const std::int32_t> offsets) const {
    std::int64_t end = 0;
    for (int i = 0; i < etp_size(); ++i) {
      d.regions[static_cast<std::size_t>(i)] = end;
      for (int r = 0; r < ep().size(); ++r) end += rows_between(offsets, r, i, ep().rank());
    }
    d.regions.back() = end;
    for (int r = 0; r < ep().size(); ++r) {
      d.leaving[static_cast<std::size_t>(r)] = rows_between(offsets, ep().rank(), etp_rank(), r);
      d.coming[static_cast<std::size_t>(r)] = rows_between(offsets, r, etp_rank(), ep().rank());
    }
  }

  Tensor region(const Dispatched& d, const Tensor& came, int etp_rank) const {
    const auto i = static_cast<std::size_t>(etp_rank);
    return came.rows(d.regions[i], d.regions[i + 1]);
  }

  // values [n,1] of 4 bytes, which travel as they are: of source s, number s / sources_each.
  Ticket go(Run& run, const Dispatched& d, const Tensor& values, const Tensor& sources, std::int64_t sources_each,
            const Tensor& came) const {
    const auto bits = [](Tensor x) {
      x.dtype = DType::f32;
      return x;
    };
    const Tensor leaving = run.scratch.take(shape(sources.dim(0), 1), DType::f32, "moe.leaving_choices");
    run.ops.permute({.x = bits(values), .sources = sources, .y = leaving, .topk = sources_each});
    return send(run, d, leaving, bits(came));
  }

  // leaving [t K,*] in order of experts; came [R,*]. Each call waits for the one before, and nobody else.
  Ticket send(Run& run, const Dispatched& d, const Tensor& leaving, const Tensor& came) const {
    Ticket there = ep().all_to_all(leaving, region(d, came, etp_rank()), d.leaving, d.coming, run.ops.record());
    for (int i = 0; i < etp_size() && etp_size() > 1; ++i)
      if (const Tensor part = region(d, came, i); part.dim(0) > 0) there = parallel_.etp->broadcast(part, i, there);
    return there;
  }

  // The same back; each rank of etp has its features' terms. Changes came.
  Ticket send_back(Run& run, const Dispatched& d, const Tensor& came, const Tensor& home) const {
    Ticket there = run.ops.record();
    for (int i = 0; i < etp_size() && etp_size() > 1; ++i)
      if (const Tensor part = region(d, came, i); part.dim(0) > 0)
        there = parallel_.etp->all_reduce(part, Reduce::sum, there);
    return ep().all_to_all(region(d, came, etp_rank()), home, d.coming, d.leaving, there);
  }
};

}  // namespace

std::unique_ptr<Dispatch> make_all_to_all_dispatch(const DispatchSpec& spec, const ExpertParallel& parallel) {
  return std::make_unique<AllToAllDispatch>(spec, parallel);
}

}  // namespace tera
