// Collectives as tasks of the engine. A rank's copies to itself are made here, through its Ops.

#include "tera/comm/mpi/mpi_comm.h"

#include <fmt/core.h>

#include <algorithm>

#include "tera/ops/combine.h"
#include "tera/ops/copy.h"

namespace tera::mpi {
namespace {

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.data); }

class MpiComm final : public Comm, public Timeline {
 public:
  MpiComm(Engine& engine, Group& group, Ops& ops) : engine_(engine), group_(group), ops_(ops) {}
  ~MpiComm() override;

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size(); }
  std::string_view name() const override { return group_.name; }
  void barrier() override;
  std::unique_ptr<Comm> split(int color, int key, std::string name) override;
  void abort(std::string_view reason) noexcept override { engine_.control().abort(reason); }

  void finish(std::uint64_t number) override { engine_.wait(group_, number); }

 private:
  Ticket do_all_reduce(const Tensor& inout, Reduce how, Ticket after) override;
  Ticket do_all_gather(const Tensor& shard, const Tensor& full, Ticket after) override;
  Ticket do_reduce_scatter(const Tensor& full, const Tensor& shard, Reduce how, Ticket after) override;
  Ticket do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                       std::span<const std::int64_t> out_rows, Ticket after) override;
  Ticket do_broadcast(const Tensor& inout, int root, Ticket after) override;
  Ticket do_exchange(std::span<const Transfer> transfers, Ticket after) override;

  // A task with a lane to and a lane from each other rank, which the caller fills in before post().
  Task& begin_collective(const Call& call, std::size_t piece);
  Task& begin_task(const Call& call, std::size_t lanes);
  void reserve(std::size_t tasks, std::size_t lanes, const Call& call);
  Lane& to(const Task& task, int peer) { return group_.lane(task, index_of(peer)); }
  Lane& from(const Task& task, int peer) { return group_.lane(task, others() + index_of(peer)); }
  std::size_t others() const { return group_.members.size() - 1; }
  std::size_t index_of(int peer) const { return static_cast<std::size_t>(peer < rank() ? peer : peer - 1); }
  Ticket post(Task& first);
  template <class Visit>
  void each_other(const Visit& visit) const {
    for (int r = 0; r < size(); ++r)
      if (r != rank()) visit(r);
  }
  void copy(const Tensor& source, const Tensor& target);
  Ticket all_reduce_small(const Tensor& flat, const Call& call);

  Engine& engine_;
  Group& group_;
  Ops& ops_;
  const int exceptions_ = std::uncaught_exceptions();  // exceptions in flight before are not this rank's fault
};

void set_memory(Lane& lane, const Tensor& tensor) {
  lane.memory = bytes_of(tensor);
  lane.bytes = count(tensor.shape) == 0 ? 0 : tensor.bytes();
}

MpiComm::~MpiComm() {
  if (group_.first_unfinished(group_.posted) == nullptr) return;
  if (std::uncaught_exceptions() > exceptions_) {  // the memory of transfers in flight is freed next
    engine_.abandon_transfers();
    return;
  }
  try {
    engine_.wait(group_, group_.posted);
  } catch (const CommError&) {  // was reported to all
  }
}

void MpiComm::copy(const Tensor& source, const Tensor& target) {
  if (source.data != target.data && count(source.shape) > 0) ops_(CopyArgs{.src = source, .dst = target});
}

void MpiComm::reserve(std::size_t tasks, std::size_t lanes, const Call& call) {
  if (engine_.failed()) engine_.throw_failure(group_, call);
  const auto has_capacity = [&] { return group_.has_capacity(tasks, lanes); };
  if (!has_capacity()) group_.collect();
  if (call.kind == CallKind::exchange && !has_capacity())
    engine_.give_up(fmt::format("{}: rank {} has {} transfers in flight; finish the tickets of some", name(),
                                engine_.control().rank(), group_.lanes_used));
  while (!has_capacity()) engine_.wait(group_, group_.collected + 1);
}

Task& MpiComm::begin_task(const Call& call, std::size_t lanes) {
  Task& task = group_.task(++group_.posted);
  task.group = &group_;
  task.call = call;
  task.collective = 0;
  task.first_lane = (group_.lanes_begin + group_.lanes_used) % group_.lanes.size();
  task.lanes = lanes;
  task.piece = plain_piece;
  task.then = task.after = nullptr;
  task.local = task.sum = {};
  task.begun = task.met = false;
  task.staging = nullptr;
  task.pieces_posted = task.pieces_summed = 0;
  group_.lanes_used += lanes;
  for (std::size_t i = 0; i < lanes; ++i) group_.lane(task, i) = {};
  task.done.store(false, std::memory_order_relaxed);
  return task;
}

Task& MpiComm::begin_collective(const Call& call, std::size_t piece) {
  Task& task = begin_task(call, 2 * others());
  task.collective = ++group_.collectives;
  task.piece = piece;
  each_other([&](int r) {
    to(task, r) = {.peer = r, .send = true, .number = task.collective};
    from(task, r) = {.peer = r, .number = task.collective};
  });
  return task;
}

Ticket MpiComm::post(Task& first) {
  if (first.lanes == 0) {  // a group of one
    first.done = true;
    return ops_.record();
  }
  engine_.post(first);
  return {group_.posted, this};
}

Ticket MpiComm::do_all_gather(const Tensor& shard, const Tensor& full, Ticket after) {
  const Call call{.kind = CallKind::all_gather, .dtype = shard.dtype, .elements = count(shard.shape)};
  engine_.control().note_call(group_, call);
  reserve(1, 2 * others(), call);
  ops_.wait(after);
  const std::int64_t rows = shard.dim(0);
  const auto part = [&](int r) { return full.rows(r * rows, (r + 1) * rows); };
  copy(shard, part(rank()));
  Task& task = begin_collective(call, plain_piece);
  each_other([&](int r) {
    set_memory(to(task, r), shard);
    set_memory(from(task, r), part(r));
  });
  return post(task);
}

Ticket MpiComm::do_reduce_scatter(const Tensor& full, const Tensor& shard, Reduce how, Ticket after) {
  const std::int64_t n = count(shard.shape);
  const Call call{.kind = CallKind::reduce_scatter, .dtype = shard.dtype, .elements = n, .how = how};
  engine_.control().note_call(group_, call);
  reserve(1, 2 * others(), call);
  ops_.wait(after);
  if (size() == 1) copy(full, shard);
  const Tensor flat = full.view(shape(n * size()));
  const auto part = [&](int r) { return flat.rows(r * n, (r + 1) * n); };
  Task& task = begin_collective(call, sum_piece(size()));
  task.local = part(rank());
  task.sum = shard.view(shape(n));
  each_other([&](int r) {
    set_memory(to(task, r), part(r));
    from(task, r).bytes = to(task, r).bytes;
  });
  return post(task);
}

// Every rank sends all of its input to all others, and each reduces everything.
Ticket MpiComm::all_reduce_small(const Tensor& flat, const Call& call) {
  Task& task = begin_collective(call, sum_piece(size()));
  task.local = task.sum = flat;
  each_other([&](int r) {
    set_memory(to(task, r), flat);
    from(task, r).bytes = to(task, r).bytes;
  });
  return post(task);
}

// A reduce-scatter and an all-gather.
Ticket MpiComm::do_all_reduce(const Tensor& inout, Reduce how, Ticket after) {
  const std::int64_t n = count(inout.shape);
  const Call call{.kind = CallKind::all_reduce, .dtype = inout.dtype, .elements = n, .how = how};
  engine_.control().note_call(group_, call);
  reserve(2, 4 * others(), call);
  ops_.wait(after);
  const Tensor flat = inout.view(shape(n));
  if (n == 0 || size() == 1 || flat.bytes() <= Message::capacity) return all_reduce_small(flat, call);
  constexpr std::int64_t grain = 64;  // parts begin at cache lines
  const std::int64_t length = (n + size() * grain - 1) / (size() * grain) * grain;
  const auto part = [&](int r) { return flat.rows(std::min(n, r * length), std::min(n, (r + 1) * length)); };
  Task& scatter = begin_collective(call, sum_piece(size()));
  Task& gather = begin_collective(call, plain_piece);
  scatter.then = &gather;
  scatter.local = scatter.sum = part(rank());
  each_other([&](int r) {
    set_memory(to(scatter, r), part(r));
    set_memory(to(gather, r), part(rank()));
    set_memory(from(gather, r), part(r));
    from(scatter, r).bytes = to(gather, r).bytes;
  });
  return post(scatter);
}

Ticket MpiComm::do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                              std::span<const std::int64_t> out_rows, Ticket after) {
  Shape row = in.shape;
  row[0] = 1;
  const Call call{.kind = CallKind::all_to_all, .dtype = in.dtype, .elements = count(row)};
  engine_.control().note_call(group_, call);
  reserve(1, 2 * others(), call);
  ops_.wait(after);
  Task& task = begin_collective(call, plain_piece);
  std::int64_t in_begin = 0, out_begin = 0;
  for (int r = 0; r < size(); ++r) {
    const std::int64_t sent = in_rows[static_cast<std::size_t>(r)], received = out_rows[static_cast<std::size_t>(r)];
    const Tensor source = in.rows(in_begin, in_begin + sent), target = out.rows(out_begin, out_begin + received);
    in_begin += sent;
    out_begin += received;
    if (r == rank()) {
      if (sent != received)
        engine_.give_up(fmt::format("{}: all_to_all: rank {} sends {} rows to itself and expects {}", name(),
                                    engine_.control().rank(), sent, received));
      copy(source, target);
      continue;
    }
    set_memory(to(task, r), source);
    set_memory(from(task, r), target);
    to(task, r).rows = sent;
    from(task, r).rows = received;
  }
  return post(task);
}

// Ranks with nothing to send still send a message, which checks that all make the same call.
Ticket MpiComm::do_broadcast(const Tensor& inout, int root, Ticket after) {
  const Call call{.kind = CallKind::broadcast, .dtype = inout.dtype, .elements = count(inout.shape), .root = root};
  engine_.control().note_call(group_, call);
  reserve(1, 2 * others(), call);
  ops_.wait(after);
  Task& task = begin_collective(call, plain_piece);
  if (root != rank()) set_memory(from(task, root), inout);
  if (root == rank()) each_other([&](int r) { set_memory(to(task, r), inout); });
  return post(task);
}

Ticket MpiComm::do_exchange(std::span<const Transfer> transfers, Ticket after) {
  Call call{.kind = CallKind::exchange};
  for (const Transfer& transfer : transfers) call.elements += count(transfer.tensor.shape);
  engine_.control().note_call(group_, call);
  reserve(1, transfers.size(), call);
  ops_.wait(after);
  Task& task = begin_task(call, transfers.size());
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& transfer = transfers[i];
    auto& numbers = transfer.send ? group_.sent_to : group_.received_from;
    Lane& lane = group_.lane(task, i);
    lane.peer = transfer.peer;
    lane.send = transfer.send;
    lane.number = ++numbers[static_cast<std::size_t>(transfer.peer)];
    lane.tensor = transfer.tensor;
    set_memory(lane, transfer.tensor);
  }
  return post(task);
}

void MpiComm::barrier() {
  const Call call{.kind = CallKind::barrier};
  engine_.control().note_call(group_, call);
  reserve(1, 2 * others(), call);
  post(begin_collective(call, plain_piece));
  finish(group_.posted);
}

std::unique_ptr<Comm> MpiComm::split(int color, int key, std::string name) {
  return make_mpi_comm(engine_, engine_.add_group(engine_.control().split(group_, color, key, std::move(name))), ops_);
}

}  // namespace

std::unique_ptr<Comm> make_mpi_comm(Engine& engine, Group& group, Ops& ops) {
  return std::make_unique<MpiComm>(engine, group, ops);
}

}  // namespace tera::mpi
