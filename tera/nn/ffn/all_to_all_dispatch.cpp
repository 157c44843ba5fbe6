#include <algorithm>

#include "tera/base/error.h"
#include "tera/nn/ffn/dispatch.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/ops/expert_rows.h"

namespace tera {
namespace {

// All-to-all dispatch: rows are sent to the ranks of their experts and to no others.
//
//   local rows [t,H] --permute--> [t K,H] in order of experts, so of ranks --all-to-all over ep--> [N,H] as received
//   --permute--> [R,H] in order of this rank's experts
//
// Each rank of etp receives rows of its own for the same experts, and broadcasts them to the others; combine sums what
// these make of them over etp and sends it back. The host has to know how many rows are sent: it reads that once in F,
// while the device sorts the rows and computes the shared expert. With token dropping sizes are fixed, and it reads
// nothing.
class AllToAllDispatch final : public Dispatch {
 public:
  using Dispatch::Dispatch;

  Dispatched make() const override {
    Dispatched d;
    d.send_counts.resize(static_cast<std::size_t>(ep().size()));
    d.receive_counts.resize(d.send_counts.size());
    d.regions.resize(static_cast<std::size_t>(etp_size()) + 1);
    return d;
  }

  void begin(Run& run, Dispatched& d, const Routes& routes, const Tensor& local) const override {
    const bool padded = spec_.expert_capacity > 0;
    const std::int64_t sent = padded ? spec_.experts * slots(routes) : count(routes.experts.shape);
    d.send_sources = run.stash.take(Life::f_to_w, shape(sent), DType::i32, "moe.home_sources");
    d.return_rows = run.stash.take(Life::f_to_b, routes.experts.shape, DType::i32, "moe.home_places");
    if (padded)
      fill_slots(run, d, routes);
    else
      read_counts(run, d, routes.experts);
    d.send_rows = run.scratch.take(shape(sent, local.dim(1)), local.dtype, "moe.leaving");  // overlaps the read
    run.ops(PermuteArgs{.x = local, .sources = d.send_sources, .y = d.send_rows, .topk = spec_.topk});
  }

  void start_dispatch(Run& run, Dispatched& d, const Routes& routes, const Tensor& local) const override {
    const std::int64_t tokens = routes.experts.dim(0) * all_ranks().size();
    const bool padded = spec_.expert_capacity > 0;
    const std::int64_t capacity = padded ? d.send_sources.dim(0) * etp_size() : row_capacity(run, tokens);
    if (padded || run.scratch.is_measuring()) {
      plan_even_load(d);
    } else {
      run.ops.finish(d.counts_read);
      check_capacity(run.mb.expert_offsets, capacity, even_share(tokens));
      count_rows(d, run.mb.expert_offsets);
    }
    d.expected_rows = padded ? capacity : std::min(capacity, static_cast<std::int64_t>(even_share(tokens)));
    d.weights = run.stash.take(Life::f_to_b, shape(capacity, 1), DType::f32, "moe.all_weights");
    d.choices = run.scratch.take(shape(capacity, 1), DType::i32, "moe.all_experts");
    d.forward_rows = {.from = d.send_rows,
                      .to = run.scratch.take(shape(capacity, local.dim(1)), local.dtype, "moe.came"),
                      .arrival = {}};
    d.weights_arrival = send_column(run, d, as_column(routes.weights), d.send_sources, 1, d.weights);
    if (padded) {
      const Tensor numbers = iota(run, d.send_sources.dim(0));  // slot s is of expert s / slots
      d.experts_arrival =
          send_column(run, d, as_column(numbers.rows(0, spec_.experts)), numbers, slots(routes), d.choices);
    } else {
      run.ops(FillArgs{.out = d.choices, .value = -1});  // value of rows beyond those received
      d.experts_arrival = send_column(run, d, as_column(routes.experts), d.send_sources, 1, d.choices);
    }
    d.forward_rows.arrival = send(run, d, d.forward_rows.from, d.forward_rows.to);
  }

  Tensor finish_dispatch(Run& run, Dispatched& d) const override {
    run.ops.wait(d.experts_arrival);
    group(run, d, d.choices.dim(0), {.experts = d.choices});
    const Tensor to = run.scratch.take(d.forward_rows.to.shape, d.forward_rows.to.dtype, "moe.rows");
    finish_rows(run, d, d.forward_rows, to);
    run.ops.wait(d.weights_arrival);
    return to;
  }

  InFlightTransfer start_rows(Run& run, const Dispatched& d, const Tensor& local) const override {
    const Tensor received = run.scratch.take(shape(d.rows(), local.dim(1)), local.dtype, "moe.came");
    const Tensor sent = run.scratch.take(shape(d.send_sources.dim(0), local.dim(1)), local.dtype, "moe.leaving");
    run.ops(PermuteArgs{.x = local, .sources = d.send_sources, .y = sent, .topk = spec_.topk});
    return {.from = sent, .to = received, .arrival = send(run, d, sent, received)};
  }

  void finish_rows(Run& run, const Dispatched& d, const InFlightTransfer& transfer, const Tensor& to) const override {
    run.ops.wait(transfer.arrival);
    run.ops(PermuteArgs{.x = transfer.to, .sources = d.sources, .y = to});
  }

  InFlightTransfer start_combine(Run& run, const Dispatched& d, const Tensor& rows, const Tensor& out,
                                 const Tensor&) const override {
    const Tensor returned = run.scratch.take(shape(d.send_sources.dim(0), out.dim(1)), out.dtype, "moe.home");
    const Tensor received = run.scratch.take(rows.shape, rows.dtype, "moe.came");
    const std::int64_t arrived = d.regions.back();
    run.ops(
        UnpermuteArgs{.x = rows, .places = d.places.rows(0, arrived), .y = received.rows(0, arrived), .residual = {}});
    return {.from = received, .to = returned, .arrival = send_back(run, d, received, returned)};
  }

  void finish_combine(Run& run, const Dispatched& d, const InFlightTransfer& transfer, const Tensor& out,
                      const Tensor& residual) const override {
    run.ops.wait(transfer.arrival);
    run.ops(UnpermuteArgs{.x = transfer.to, .places = d.return_rows, .y = out, .residual = residual});
  }

  InFlightTransfer start_weight_gradients(Run& run, const Dispatched& d, const Tensor& arrived) const override {
    const Tensor returned = run.scratch.take(shape(d.send_sources.dim(0), 1), DType::f32, "moe.home_dweights");
    return {.from = arrived, .to = returned, .arrival = send_back(run, d, arrived, returned)};
  }

  Tensor finish_weight_gradients(Run& run, const Dispatched& d, const InFlightTransfer& transfer) const override {
    const Tensor local = run.scratch.take(d.return_rows.shape, DType::f32, "moe.dweights");
    run.ops.wait(transfer.arrival);
    run.ops(UnpermuteArgs{.x = transfer.to, .places = as_column(d.return_rows), .y = as_column(local), .residual = {}});
    return local;
  }

 private:
  Comm& ep() const { return *parallel_.ep; }
  Comm& all_ranks() const { return *parallel_.group; }
  int etp_size() const { return parallel_.etp ? parallel_.etp->size() : 1; }
  int etp_rank() const { return parallel_.etp ? parallel_.etp->rank() : 0; }

  static Tensor as_column(const Tensor& x) { return x.view(shape(count(x.shape), 1)); }

  // Sorts local choices by expert, and starts to copy to the host how many rows each rank has for each expert.
  void read_counts(Run& run, Dispatched& d, const Tensor& experts) const {
    ScratchScope scope(run.scratch);
    const Tensor offsets = run.scratch.take(shape(spec_.experts + 1), DType::i32, "moe.home_offsets");
    const Tensor all = run.scratch.take(shape(all_ranks().size() * (spec_.experts + 1)), DType::i32, "moe.all_offsets");
    run.ops(GroupRowsArgs{.experts = experts, .offsets = offsets, .sources = d.send_sources, .places = d.return_rows});
    run.ops.wait(all_ranks().all_gather(offsets, all, run.ops.record()));
    if (!run.scratch.is_measuring()) {
      const auto host = std::as_writable_bytes(run.mb.expert_offsets);
      require(host.size() == all.bytes(), "offsets of experts: {} bytes on the host for {}", host.size(), all.bytes());
      run.ops.to_host_later(all, host);
    }
    d.counts_read = run.ops.record();
  }

  // Token dropping: rows of local tokens that each expert takes.
  std::int64_t slots(const Routes& routes) const {
    return padded_rows(spec_.expert_capacity, count(routes.experts.shape), spec_.experts, routes.experts.dim(0));
  }

  // Token dropping: sorts local choices by expert, a fixed number for each, so that the host reads nothing.
  void fill_slots(Run& run, const Dispatched& d, const Routes& routes) const {
    ScratchScope scope(run.scratch);
    run.ops(GroupRowsArgs{.experts = routes.experts,
                          .offsets = run.scratch.take(shape(spec_.experts + 1), DType::i32, "moe.home_offsets"),
                          .sources = d.send_sources,
                          .places = d.return_rows,
                          .capacity = slots(routes),
                          .weights = spec_.drop == TokenDropPolicy::probs ? routes.weights : Tensor{}});
  }

  // i32 [count] 0, 1, ...: the order of tokens that all choose the same expert.
  Tensor iota(Run& run, std::int64_t count) const {
    const Tensor numbers = run.scratch.take(shape(count), DType::i32, "moe.slots");
    ScratchScope scope(run.scratch);
    const Tensor same = run.scratch.take(shape(count, 1), DType::i32, "moe.slots");
    run.ops(FillArgs{.out = same, .value = 0});
    run.ops(GroupRowsArgs{.experts = same,
                          .offsets = run.scratch.take(shape(2), DType::i32, "moe.slots"),
                          .sources = numbers,
                          .places = run.scratch.take(same.shape, DType::i32, "moe.slots")});
    return numbers;
  }

  // Sizes in a rehearsal and with token dropping: an equal number of rows to and from each rank of ep.
  void plan_even_load(Dispatched& d) const {
    const std::int64_t ranks = ep().size(), choices = d.send_sources.dim(0);
    for (std::int64_t r = 0; r < ranks; ++r)
      d.send_counts[static_cast<std::size_t>(r)] = d.receive_counts[static_cast<std::size_t>(r)] =
          choices * (r + 1) / ranks - choices * r / ranks;
    for (std::size_t i = 0; i < d.regions.size(); ++i) d.regions[i] = static_cast<std::int64_t>(i) * choices;
  }

  // The number of rows that one rank sends to a rank of ep. offsets [ep][etp][E+1]: of each rank's rows, in order of
  // experts.
  std::int64_t rows_between(std::span<const std::int32_t> offsets, std::int64_t from_ep, std::int64_t from_etp,
                            std::int64_t to_ep) const {
    const std::int64_t experts = local_experts_.size();
    const auto at = static_cast<std::size_t>((from_ep * etp_size() + from_etp) * (spec_.experts + 1) + to_ep * experts);
    return offsets[at + static_cast<std::size_t>(experts)] - offsets[at];
  }

  // Every rank of the group checks the capacity of all of them, so that all report the same fault.
  void check_capacity(std::span<const std::int32_t> offsets, std::int64_t capacity, double even) const {
    std::int64_t fullest = 0, max_rows = 0;
    for (std::int64_t to = 0; to < ep().size(); ++to) {
      std::int64_t rows = 0;
      for (std::int64_t from = 0; from < ep().size(); ++from)
        for (std::int64_t i = 0; i < etp_size(); ++i) rows += rows_between(offsets, from, i, to);
      if (rows > max_rows) {
        fullest = to;
        max_rows = rows;
      }
    }
    if (max_rows > capacity)
      fail_capacity_overflow({.rank_capacity = spec_.rank_capacity,
                              .rank = parallel_.first_rank + fullest * etp_size(),
                              .block = spec_.name,
                              .arrived = max_rows,
                              .capacity = capacity,
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
      d.send_counts[static_cast<std::size_t>(r)] = rows_between(offsets, ep().rank(), etp_rank(), r);
      d.receive_counts[static_cast<std::size_t>(r)] = rows_between(offsets, r, etp_rank(), ep().rank());
    }
  }

  Tensor region(const Dispatched& d, const Tensor& received, int etp_rank) const {
    const auto i = static_cast<std::size_t>(etp_rank);
    return received.rows(d.regions[i], d.regions[i + 1]);
  }

  // Sends one 4-byte value per row, as it is: values [n,1], of source s the value s / sources_each.
  Ticket send_column(Run& run, const Dispatched& d, const Tensor& values, const Tensor& sources,
                     std::int64_t sources_each, const Tensor& received) const {
    const auto bits = [](Tensor x) {
      x.dtype = DType::f32;
      return x;
    };
    const Tensor sent = run.scratch.take(shape(sources.dim(0), 1), DType::f32, "moe.leaving_choices");
    run.ops(PermuteArgs{.x = bits(values), .sources = sources, .y = sent, .topk = sources_each});
    return send(run, d, sent, bits(received));
  }

  // sent [t K,*] in order of experts; received [R,*]. Each collective waits for the one before, and nobody else does.
  Ticket send(Run& run, const Dispatched& d, const Tensor& sent, const Tensor& received) const {
    Ticket arrival =
        ep().all_to_all(sent, region(d, received, etp_rank()), d.send_counts, d.receive_counts, run.ops.record());
    for (int i = 0; i < etp_size() && etp_size() > 1; ++i)
      if (const Tensor part = region(d, received, i); part.dim(0) > 0)
        arrival = parallel_.etp->broadcast(part, i, arrival);
    return arrival;
  }

  // Returns rows to their ranks, summed over etp, whose ranks have the terms of their features. Overwrites received.
  Ticket send_back(Run& run, const Dispatched& d, const Tensor& received, const Tensor& returned) const {
    Ticket arrival = run.ops.record();
    for (int i = 0; i < etp_size() && etp_size() > 1; ++i)
      if (const Tensor part = region(d, received, i); part.dim(0) > 0)
        arrival = parallel_.etp->all_reduce(part, Reduce::sum, arrival);
    return ep().all_to_all(region(d, received, etp_rank()), returned, d.receive_counts, d.send_counts, arrival);
  }
};

}  // namespace

std::unique_ptr<Dispatch> make_all_to_all_dispatch(const DispatchSpec& spec, const ExpertParallel& parallel) {
  return std::make_unique<AllToAllDispatch>(spec, parallel);
}

}  // namespace tera
