// The collectives of threads. Nobody allocates, and no memory but the callers' is used: a rank reads the tensors of the
// others where they lie.

#include "tera/comm/thread_comm.h"

#include <fmt/core.h>

#include <algorithm>

#include "tera/comm/thread_group.h"

namespace tera {
namespace {

// A post holds a ticket until its other side comes; the queue may have given out many since.
constexpr std::size_t tickets_known = 4096;

class ThreadComm final : public Comm, public Timeline {
 public:
  ThreadComm(ThreadHubState& hub, ThreadGroup& group, int rank, Ops& ops)
      : hub_(hub), group_(group), rank_(rank), ops_(ops), sources_(static_cast<std::size_t>(group.size())) {}
  ~ThreadComm() override { group_.leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return group_.size(); }
  std::string_view name() const override { return group_.name(); }
  void barrier() override;
  std::unique_ptr<Comm> split(int color, int key, std::string name) override;
  void abort(std::string_view reason) noexcept override { hub_.abort(group_.world_rank(rank_), reason); }

  void finish(std::uint64_t exchange) override;  // the tickets of exchange

 private:
  Ticket do_all_reduce(const Tensor& inout, Reduce how, Ticket after) override;
  Ticket do_all_gather(const Tensor& shard, const Tensor& whole, Ticket after) override;
  Ticket do_reduce_scatter(const Tensor& whole, const Tensor& shard, Reduce how, Ticket after) override;
  Ticket do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                       std::span<const std::int64_t> out_rows, Ticket after) override;
  Ticket do_broadcast(const Tensor& inout, int root, Ticket after) override;
  Ticket do_exchange(std::span<const Transfer> transfers, Ticket after) override;

  // A phase: what this rank brings, behind all that its queue was asked for; then the queue waits for the others'.
  void meet(Arrival arrival);
  const Arrival& of(int rank) const { return group_.arrival(rank, rank_); }
  void copy(const Tensor& from, const Tensor& to);
  void copy_with_post(const Transfer& transfer, Post& post);
  void combine_rows(std::int64_t begin, std::int64_t end, const Tensor& out, Reduce how);

  ThreadHubState& hub_;
  ThreadGroup& group_;
  int rank_;
  Ops& ops_;
  std::vector<Tensor> sources_;  // one of each rank, for combine
  std::uint64_t exchanges_ = 0;
  std::int64_t exchanged_elements_ = 0;  // of the latest, for messages
};

void ThreadComm::meet(Arrival arrival) {
  arrival.ready = ops_.record();
  group_.meet(rank_, arrival);
  for (int r = 0; r < size(); ++r)
    if (r != rank_) ops_.wait(of(r).ready);
  group_.have_read(rank_);
}

void ThreadComm::copy(const Tensor& from, const Tensor& to) {
  if (from.data != to.data && count(from.shape) > 0) ops_.copy({.src = from, .dst = to});
}

// The rows of every rank's tensor, in order of ranks.
void ThreadComm::combine_rows(std::int64_t begin, std::int64_t end, const Tensor& out, Reduce how) {
  if (count(out.shape) == 0) return;
  for (int r = 0; r < size(); ++r) sources_[static_cast<std::size_t>(r)] = of(r).tensor.rows(begin, end);
  ops_.combine({.sources = sources_, .out = out, .how = how});
}

// Each rank combines one part of the elements, in place: nobody else reads that part of its tensor. Then all parts are
// copied from where they were made.
Ticket ThreadComm::do_all_reduce(const Tensor& inout, Reduce how, Ticket after) {
  const std::int64_t n = count(inout.shape);
  const Call call{.kind = CallKind::all_reduce, .dtype = inout.dtype, .elements = n, .how = how};
  const InCall scope(hub_, group_, rank_, call);
  ops_.wait(after);
  const Tensor flat = inout.view(shape(n));
  constexpr std::int64_t grain = 64;  // parts begin at whole cache lines
  const std::int64_t part = (n + size() * grain - 1) / (size() * grain) * grain;
  const auto begin = [&](int r) { return std::min(n, r * part); };
  meet({.call = call, .tensor = flat});
  combine_rows(begin(rank_), begin(rank_ + 1), flat.rows(begin(rank_), begin(rank_ + 1)), how);
  meet({.call = call, .tensor = flat});
  for (int step = 1; step < size(); ++step) {  // everyone begins elsewhere
    const int r = (rank_ + step) % size();
    copy(of(r).tensor.rows(begin(r), begin(r + 1)), flat.rows(begin(r), begin(r + 1)));
  }
  meet({.call = call});
  return ops_.record();
}

Ticket ThreadComm::do_all_gather(const Tensor& shard, const Tensor& whole, Ticket after) {
  const Call call{.kind = CallKind::all_gather, .dtype = shard.dtype, .elements = count(shard.shape)};
  const InCall scope(hub_, group_, rank_, call);
  ops_.wait(after);
  meet({.call = call, .tensor = shard});
  const std::int64_t rows = shard.dim(0);
  for (int step = 0; step < size(); ++step) {
    const int r = (rank_ + step) % size();
    copy(of(r).tensor.view(shard.shape), whole.rows(r * rows, (r + 1) * rows));
  }
  meet({.call = call});
  return ops_.record();
}

Ticket ThreadComm::do_reduce_scatter(const Tensor& whole, const Tensor& shard, Reduce how, Ticket after) {
  const std::int64_t n = count(shard.shape);
  const Call call{.kind = CallKind::reduce_scatter, .dtype = shard.dtype, .elements = n, .how = how};
  const InCall scope(hub_, group_, rank_, call);
  ops_.wait(after);
  meet({.call = call, .tensor = whole.view(shape(n * size()))});
  combine_rows(rank_ * n, (rank_ + 1) * n, shard.view(shape(n)), how);
  meet({.call = call});
  return ops_.record();
}

Ticket ThreadComm::do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                                 std::span<const std::int64_t> out_rows, Ticket after) {
  Shape row = in.shape;
  row[0] = 1;
  const Call call{.kind = CallKind::all_to_all, .dtype = in.dtype, .elements = count(row)};
  const InCall scope(hub_, group_, rank_, call);
  ops_.wait(after);
  meet({.call = call, .tensor = in, .in_rows = in_rows.data()});
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
  meet({.call = call});
  return ops_.record();
}

Ticket ThreadComm::do_broadcast(const Tensor& inout, int root, Ticket after) {
  const Call call{.kind = CallKind::broadcast, .dtype = inout.dtype, .elements = count(inout.shape), .root = root};
  const InCall scope(hub_, group_, rank_, call);
  ops_.wait(after);
  meet({.call = call, .tensor = inout});
  copy(of(root).tensor.view(inout.shape), inout);
  meet({.call = call});
  return ops_.record();
}

void ThreadComm::copy_with_post(const Transfer& transfer, Post& post) {
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

// No rank waits here: where the other side has posted already, this one copies; else it posts, and the other will.
Ticket ThreadComm::do_exchange(std::span<const Transfer> transfers, Ticket after) {
  Call call{.kind = CallKind::exchange};
  for (const Transfer& transfer : transfers) call.elements += count(transfer.tensor.shape);
  const InCall scope(hub_, group_, rank_, call);
  const std::uint64_t exchange = ++exchanges_;
  exchanged_elements_ = call.elements;
  ops_.wait(after);
  const Ticket ready = ops_.record();  // what a peer's queue can wait for
  for (const Transfer& transfer : transfers)
    if (Post* post = group_.take_or_post(rank_, transfer, ready, exchange)) copy_with_post(transfer, *post);
  const Ticket own = ops_.record();
  return group_.note_own_copies(rank_, exchange, own) ? Ticket{exchange, this} : own;
}

void ThreadComm::finish(std::uint64_t exchange) {
  const Call call{.kind = CallKind::exchange, .elements = exchanged_elements_};
  const InCall scope(hub_, group_, rank_, call);
  group_.finish_exchanges(rank_, exchange);
}

void ThreadComm::barrier() {
  const Call call{.kind = CallKind::barrier};
  const InCall scope(hub_, group_, rank_, call);
  group_.meet(rank_, {.call = call});
  group_.have_read(rank_);
}

std::unique_ptr<Comm> ThreadComm::split(int color, int key, std::string name) {
  const Call call{.kind = CallKind::split};
  const InCall scope(hub_, group_, rank_, call);
  group_.meet(rank_, {.call = call, .color = color, .key = key});
  std::vector<int> ranks;  // of this group
  for (int r = 0; r < size(); ++r)
    if (of(r).color == color) ranks.push_back(r);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return of(a).key < of(b).key; });
  const int place = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  Arrival next{.call = call};
  if (place == 0) {
    std::vector<int> members;
    for (int r : ranks) members.push_back(group_.world_rank(r));
    next.made = &hub_.make_group(std::move(name), std::move(members));
  }
  group_.meet(rank_, next);
  ThreadGroup& made = *of(ranks.front()).made;
  group_.have_read(rank_);
  return std::make_unique<ThreadComm>(hub_, made, place, ops_);
}

}  // namespace

ThreadHub::ThreadHub(int ranks, const ThreadCommOptions& options) {
  require(ranks >= 1 && ranks <= static_cast<int>(CombineArgs::most_sources), "{} ranks as threads; 1 to {} can be",
          ranks, CombineArgs::most_sources);
  state_ = std::make_unique<ThreadHubState>(ranks, options);
}

ThreadHub::~ThreadHub() = default;

std::unique_ptr<Comm> ThreadHub::join(int rank, Ops& ops) {
  require(rank >= 0 && rank < state_->world().size(), "rank {} of {}", rank, state_->world().size());
  ops.reserve_tickets(tickets_known);
  return std::make_unique<ThreadComm>(*state_, state_->world(), rank, ops);
}

void ThreadHub::abort(int rank, std::string_view reason) noexcept { state_->abort(rank, reason); }

std::optional<ThreadHub::Failure> ThreadHub::failure() const {
  const int rank = state_->failed_rank();
  return rank < 0 ? std::nullopt : std::optional(Failure{rank, std::string(state_->reason())});
}

}  // namespace tera
