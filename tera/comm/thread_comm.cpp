// The collectives of threads, zero-copy: a rank reads the tensors of the others in place. Nothing is allocated.

#include "tera/comm/thread_comm.h"

#include <fmt/core.h>

#include <algorithm>

#include "tera/comm/thread_group.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"

namespace tera {
namespace {

// A posted transfer holds a ticket until its peer posts; the queue may have given out many others by then.
constexpr std::size_t max_open_tickets = 4096;

class ThreadComm final : public Comm, public Timeline {
 public:
  ThreadComm(ThreadCoordinatorState& coordinator, ThreadGroup& group, int rank, Ops& ops)
      : coordinator_(coordinator),
        group_(group),
        rank_(rank),
        ops_(ops),
        sources_(static_cast<std::size_t>(group.size())) {}
  ~ThreadComm() override { group_.leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return group_.size(); }
  std::string_view name() const override { return group_.name(); }
  void barrier() override;
  std::unique_ptr<Comm> split(int color, int key, std::string name) override;
  void abort(std::string_view reason) noexcept override { coordinator_.abort(group_.world_rank(rank_), reason); }

  void finish(std::uint64_t exchange) override;  // waits for a ticket of exchange()

 private:
  Ticket do_all_reduce(const Tensor& inout, Reduce how, Ticket after) override;
  Ticket do_all_gather(const Tensor& shard, const Tensor& full, Ticket after) override;
  Ticket do_reduce_scatter(const Tensor& full, const Tensor& shard, Reduce how, Ticket after) override;
  Ticket do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                       std::span<const std::int64_t> out_rows, Ticket after) override;
  Ticket do_broadcast(const Tensor& inout, int root, Ticket after) override;
  Ticket do_exchange(std::span<const Transfer> transfers, Ticket after) override;

  // One phase: publishes this rank's arrival, which is ready after all work on its queue so far; then the queue waits
  // for the arrivals of the others.
  void arrive_and_wait(Arrival arrival);
  const Arrival& of(int rank) const { return group_.arrival(rank, rank_); }
  void copy(const Tensor& from, const Tensor& to);
  void copy_with_post(const Transfer& transfer, PostedTransfer& post);
  void combine_rows(std::int64_t begin, std::int64_t end, const Tensor& out, Reduce how);

  ThreadCoordinatorState& coordinator_;
  ThreadGroup& group_;
  int rank_;
  Ops& ops_;
  std::vector<Tensor> sources_;  // by rank, for combine
  std::uint64_t exchanges_ = 0;
  std::int64_t exchanged_elements_ = 0;  // elements of the latest exchange, for messages
};

void ThreadComm::arrive_and_wait(Arrival arrival) {
  arrival.ready = ops_.record();
  group_.arrive_and_wait(rank_, arrival);
  for (int r = 0; r < size(); ++r)
    if (r != rank_) ops_.wait(of(r).ready);
  group_.finish_reading(rank_);
}

void ThreadComm::copy(const Tensor& from, const Tensor& to) {
  if (from.data != to.data && count(from.shape) > 0) ops_(CopyArgs{.src = from, .dst = to});
}

// Reduces these rows of every rank's tensor, in the order of ranks.
void ThreadComm::combine_rows(std::int64_t begin, std::int64_t end, const Tensor& out, Reduce how) {
  if (count(out.shape) == 0) return;
  for (int r = 0; r < size(); ++r) sources_[static_cast<std::size_t>(r)] = of(r).tensor.rows(begin, end);
  ops_(CombineArgs{.sources = sources_, .out = out, .how = how});
}

// A reduce-scatter and an all-gather: each rank reduces one part of the elements in place, which no other rank reads
// meanwhile, and then copies the parts that the others have reduced.
Ticket ThreadComm::do_all_reduce(const Tensor& inout, Reduce how, Ticket after) {
  const std::int64_t n = count(inout.shape);
  const Call call{.kind = CallKind::all_reduce, .dtype = inout.dtype, .elements = n, .how = how};
  const CallScope scope(coordinator_, group_, rank_, call);
  ops_.wait(after);
  const Tensor flat = inout.view(shape(n));
  constexpr std::int64_t grain = 64;  // parts begin at cache lines
  const std::int64_t part = (n + size() * grain - 1) / (size() * grain) * grain;
  const auto begin = [&](int r) { return std::min(n, r * part); };
  arrive_and_wait({.call = call, .tensor = flat});
  combine_rows(begin(rank_), begin(rank_ + 1), flat.rows(begin(rank_), begin(rank_ + 1)), how);
  arrive_and_wait({.call = call, .tensor = flat});
  for (int step = 1; step < size(); ++step) {  // each rank begins at another one, against contention
    const int r = (rank_ + step) % size();
    copy(of(r).tensor.rows(begin(r), begin(r + 1)), flat.rows(begin(r), begin(r + 1)));
  }
  arrive_and_wait({.call = call});
  return ops_.record();
}

Ticket ThreadComm::do_all_gather(const Tensor& shard, const Tensor& full, Ticket after) {
  const Call call{.kind = CallKind::all_gather, .dtype = shard.dtype, .elements = count(shard.shape)};
  const CallScope scope(coordinator_, group_, rank_, call);
  ops_.wait(after);
  arrive_and_wait({.call = call, .tensor = shard});
  const std::int64_t rows = shard.dim(0);
  for (int step = 0; step < size(); ++step) {
    const int r = (rank_ + step) % size();
    copy(of(r).tensor.view(shard.shape), full.rows(r * rows, (r + 1) * rows));
  }
  arrive_and_wait({.call = call});
  return ops_.record();
}

Ticket ThreadComm::do_reduce_scatter(const Tensor& full, const Tensor& shard, Reduce how, Ticket after) {
  const std::int64_t n = count(shard.shape);
  const Call call{.kind = CallKind::reduce_scatter, .dtype = shard.dtype, .elements = n, .how = how};
  const CallScope scope(coordinator_, group_, rank_, call);
  ops_.wait(after);
  arrive_and_wait({.call = call, .tensor = full.view(shape(n * size()))});
  combine_rows(rank_ * n, (rank_ + 1) * n, shard.view(shape(n)), how);
  arrive_and_wait({.call = call});
  return ops_.record();
}

Ticket ThreadComm::do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                                 std::span<const std::int64_t> out_rows, Ticket after) {
  Shape row = in.shape;
  row[0] = 1;
  const Call call{.kind = CallKind::all_to_all, .dtype = in.dtype, .elements = count(row)};
  const CallScope scope(coordinator_, group_, rank_, call);
  ops_.wait(after);
  arrive_and_wait({.call = call, .tensor = in, .in_rows = in_rows.data()});
  std::int64_t to = 0;
  for (int r = 0; r < size(); ++r) {
    const Arrival& peer = of(r);
    const std::int64_t rows = out_rows[static_cast<std::size_t>(r)], sent = peer.in_rows[rank_];
    if (sent != rows)
      group_.give_up(rank_, fmt::format("{}: all_to_all: rank {} sends {} rows to rank {}, which expects {}", name(),
                                        group_.world_rank(r), sent, group_.world_rank(rank_), rows));
    std::int64_t from = 0;
    for (int other = 0; other < rank_; ++other) from += peer.in_rows[other];
    copy(peer.tensor.rows(from, from + rows).view(out.rows(to, to + rows).shape), out.rows(to, to + rows));
    to += rows;
  }
  arrive_and_wait({.call = call});
  return ops_.record();
}

Ticket ThreadComm::do_broadcast(const Tensor& inout, int root, Ticket after) {
  const Call call{.kind = CallKind::broadcast, .dtype = inout.dtype, .elements = count(inout.shape), .root = root};
  const CallScope scope(coordinator_, group_, rank_, call);
  ops_.wait(after);
  arrive_and_wait({.call = call, .tensor = inout});
  copy(of(root).tensor.view(inout.shape), inout);
  arrive_and_wait({.call = call});
  return ops_.record();
}

void ThreadComm::copy_with_post(const Transfer& transfer, PostedTransfer& post) {
  const Tensor &from = transfer.send ? transfer.tensor : post.tensor,
               &to = transfer.send ? post.tensor : transfer.tensor;
  if (from.dtype != to.dtype || count(from.shape) != count(to.shape)) {
    const int sender = transfer.send ? rank_ : transfer.peer, receiver = transfer.send ? transfer.peer : rank_;
    group_.give_up(rank_,
                   fmt::format("{}: exchange: rank {} sends {} to rank {}, which expects {}", name(),
                               group_.world_rank(sender), to_string(from), group_.world_rank(receiver), to_string(to)));
  }
  ops_.wait(post.ready);
  copy(from.view(to.shape), to);
  group_.copied(post, transfer.peer, ops_.record());
}

// No rank waits here: where the peer has posted its side already, this rank copies; else it posts, and the peer copies.
Ticket ThreadComm::do_exchange(std::span<const Transfer> transfers, Ticket after) {
  Call call{.kind = CallKind::exchange};
  for (const Transfer& transfer : transfers) call.elements += count(transfer.tensor.shape);
  const CallScope scope(coordinator_, group_, rank_, call);
  const std::uint64_t exchange = ++exchanges_;
  exchanged_elements_ = call.elements;
  ops_.wait(after);
  const Ticket ready = ops_.record();  // a peer's queue waits for it
  for (const Transfer& transfer : transfers)
    if (PostedTransfer* post = group_.match_or_post(rank_, transfer, ready, exchange)) copy_with_post(transfer, *post);
  const Ticket local_copies = ops_.record();
  return group_.note_local_copies(rank_, exchange, local_copies) ? Ticket{exchange, this} : local_copies;
}

void ThreadComm::finish(std::uint64_t exchange) {
  const Call call{.kind = CallKind::exchange, .elements = exchanged_elements_};
  const CallScope scope(coordinator_, group_, rank_, call);
  group_.finish_exchanges(rank_, exchange);
}

void ThreadComm::barrier() {
  const Call call{.kind = CallKind::barrier};
  const CallScope scope(coordinator_, group_, rank_, call);
  group_.arrive_and_wait(rank_, {.call = call});
  group_.finish_reading(rank_);
}

std::unique_ptr<Comm> ThreadComm::split(int color, int key, std::string name) {
  const Call call{.kind = CallKind::split};
  const CallScope scope(coordinator_, group_, rank_, call);
  group_.arrive_and_wait(rank_, {.call = call, .color = color, .key = key});
  std::vector<int> ranks;  // members of the new group, as ranks of this one
  for (int r = 0; r < size(); ++r)
    if (of(r).color == color) ranks.push_back(r);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return of(a).key < of(b).key; });
  const int new_rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  Arrival next{.call = call};
  if (new_rank == 0) {
    std::vector<int> members;
    for (int r : ranks) members.push_back(group_.world_rank(r));
    next.made = &coordinator_.make_group(std::move(name), std::move(members));
  }
  group_.arrive_and_wait(rank_, next);
  ThreadGroup& made = *of(ranks.front()).made;
  group_.finish_reading(rank_);
  return std::make_unique<ThreadComm>(coordinator_, made, new_rank, ops_);
}

}  // namespace

ThreadCoordinator::ThreadCoordinator(int ranks, const ThreadCommOptions& options) {
  require(ranks >= 1 && ranks <= static_cast<int>(CombineArgs::max_sources), "{} ranks as threads; 1 to {} can be",
          ranks, CombineArgs::max_sources);
  state_ = std::make_unique<ThreadCoordinatorState>(ranks, options);
}

ThreadCoordinator::~ThreadCoordinator() = default;

std::unique_ptr<Comm> ThreadCoordinator::join(int rank, Ops& ops) {
  require(rank >= 0 && rank < state_->world().size(), "rank {} of {}", rank, state_->world().size());
  ops.reserve_tickets(max_open_tickets);
  return std::make_unique<ThreadComm>(*state_, state_->world(), rank, ops);
}

void ThreadCoordinator::abort(int rank, std::string_view reason) noexcept { state_->abort(rank, reason); }

std::optional<ThreadCoordinator::Failure> ThreadCoordinator::failure() const {
  const int rank = state_->failed_rank();
  return rank < 0 ? std::nullopt : std::optional(Failure{rank, std::string(state_->reason())});
}

}  // namespace tera
