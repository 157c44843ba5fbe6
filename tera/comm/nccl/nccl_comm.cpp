// Collectives over NCCL, on the tensors in place. NCCL's reductions add in an order of their own.

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/base/hash.h"
#include "tera/comm/nccl/gpu_ids.h"
#include "tera/comm/nccl/make_nccl.h"
#include "tera/comm/nccl/nccl_world.h"
#include "tera/ops/combine.h"

namespace tera::nccl {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::f16: return ncclFloat16;
    case DType::f64: return ncclFloat64;
    case DType::i32: return ncclInt32;
    case DType::i64: return ncclInt64;
    case DType::u8: break;
  }
  return ncclUint8;
}

ncclRedOp_t op_of(Reduce how) {
  switch (how) {
    case Reduce::sum: return ncclSum;
    case Reduce::mean: return ncclAvg;
    case Reduce::max: break;
  }
  return ncclMax;
}

std::size_t elements(const Tensor& tensor) { return static_cast<std::size_t>(count(tensor.shape)); }

class NcclComm final : public Comm, public Timeline, public cuda::EventSource, public CallTimer {
 public:
  NcclComm(std::shared_ptr<NcclWorld> world, ControlGroup group, std::shared_ptr<Channel> channel, cuda::CudaOps& ops)
      : world_(std::move(world)), group_(std::move(group)), channel_(std::move(channel)), ops_(ops) {
    if (group_.size() == 1) self_comm_ = make_self_comm(ops, group_.name);
  }
  ~NcclComm() override;

  int rank() const override { return group_.rank; }
  int size() const override { return group_.size(); }
  std::string_view name() const override { return group_.name; }
  void barrier() override;
  std::unique_ptr<Comm> split(int color, int key, std::string name) override;
  void abort(std::string_view reason) noexcept override;
  void note_calls(std::vector<TimedCall>* notes) override { world_->note_calls(notes); }

  void finish(std::uint64_t id) override { world_->wait(*channel_, id); }
  cudaEvent_t event_of(std::uint64_t id) const override { return channel_->event_of(id); }

 private:
  Ticket do_all_reduce(const Tensor& inout, Reduce how, Ticket after) override;
  Ticket do_all_gather(const Tensor& shard, const Tensor& full, Ticket after) override;
  Ticket do_reduce_scatter(const Tensor& full, const Tensor& shard, Reduce how, Ticket after) override;
  Ticket do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                       std::span<const std::int64_t> out_rows, Ticket after) override;
  Ticket do_broadcast(const Tensor& inout, int root, Ticket after) override;
  Ticket do_exchange(std::span<const Transfer> transfers, Ticket after) override;

  // Launches a call on the GPU: `issue` calls NCCL on the stream, after the ticket `after`.
  Ticket launch(const Call& call, Ticket after, FunctionRef<ncclResult_t()> issue,
                std::span<const Transfer> transfers = {});
  void wait_on_stream(Ticket after);
  ncclResult_t send(const Tensor& tensor, int peer) const {
    return api().send(tensor.data, elements(tensor), type_of(tensor.dtype), peer, channel_->comm(), channel_->stream());
  }
  ncclResult_t receive(const Tensor& tensor, int peer) const {
    return api().receive(tensor.data, elements(tensor), type_of(tensor.dtype), peer, channel_->comm(),
                         channel_->stream());
  }
  const NcclApi& api() const { return world_->api(); }

  std::shared_ptr<NcclWorld> world_;
  ControlGroup group_;
  std::shared_ptr<Channel> channel_;
  cuda::CudaOps& ops_;
  std::unique_ptr<Comm> self_comm_;                    // for a group of one rank
  const int exceptions_ = std::uncaught_exceptions();  // exceptions in flight before are no reason to abort calls
};

// ncclGroupStart and ncclGroupEnd around calls. A group that an exception left open would swallow all calls after it.
class CallGroup {
 public:
  explicit CallGroup(const NcclApi& api) : api_(api), result_(api.group_start()), open_(result_ == ncclSuccess) {}
  ~CallGroup() {
    if (open_) api_.group_end();
  }
  CallGroup(const CallGroup&) = delete;
  CallGroup& operator=(const CallGroup&) = delete;

  template <class CallNccl>
  void add(const CallNccl& call) {
    if (result_ == ncclSuccess) result_ = call();
  }
  // The first error, of a call or of the group.
  ncclResult_t end() {
    if (!std::exchange(open_, false)) return result_;
    const ncclResult_t ended = api_.group_end();
    return result_ == ncclSuccess ? ended : result_;
  }

 private:
  const NcclApi& api_;
  ncclResult_t result_;
  bool open_;
};

// After a failure other ranks do not complete calls in flight, so these are aborted.
NcclComm::~NcclComm() {
  if (!channel_) return;
  try {
    if (std::uncaught_exceptions() > exceptions_ || world_->control().failed())
      world_->abort_all();
    else if (channel_->calls() > 0)
      world_->wait(*channel_, channel_->calls());
  } catch (const std::exception&) {  // was reported to all
    world_->abort_all();
  }
}

// The rank's memory is freed after this, and cudaFree waits for calls that the others do not complete any more.
void NcclComm::abort(std::string_view reason) noexcept {
  world_->control().abort(reason);
  world_->abort_all();
}

void NcclComm::barrier() {
  try {
    world_->control().gather(group_, {.kind = CallKind::barrier}, {}, {});
  } catch (const CommError&) {
    world_->abort_all();
    throw;
  }
}

// Tickets of this GPU are waited for on the stream, others by the host.
void NcclComm::wait_on_stream(Ticket after) {
  if (after.id == 0 || after.timeline == nullptr) return;
  if (dynamic_cast<const EventSource*>(after.timeline) == nullptr) {
    ops_.finish(after);
    after = ops_.record();
  }
  const auto* source = dynamic_cast<const EventSource*>(after.timeline);
  cuda::wait_on_stream(channel_->stream(), source->event_of(after.id));
}

Ticket NcclComm::launch(const Call& call, Ticket after, FunctionRef<ncclResult_t()> issue,
                        std::span<const Transfer> transfers) {
  world_->check_alive(group_, call);
  if (const std::uint64_t oldest = channel_->oldest_kept(); oldest > 0) world_->wait(*channel_, oldest);
  wait_on_stream(after);
  Launched& launched = channel_->begin();
  launched.call = call;
  launched.group = &group_;
  launched.peer_count = 0;
  for (const Transfer& transfer : transfers) {
    const int peer = group_.members[static_cast<std::size_t>(transfer.peer)];
    const auto end = launched.peers.begin() + static_cast<std::ptrdiff_t>(launched.peer_count);
    if (launched.peer_count < Launched::max_peers && std::find(launched.peers.begin(), end, peer) == end)
      launched.peers[launched.peer_count++] = peer;
  }
  world_->control().note_call(group_, call);
  launched.number = group_.calls;
  std::vector<TimedCall>* const notes = world_->notes();
  const Ticket begin = notes != nullptr ? world_->timing_events().mark(channel_->stream()) : Ticket{};
  world_->check_nccl(issue(), *channel_, group_, call);
  if (notes != nullptr)
    notes->push_back({group_.name, call.kind, begin, world_->timing_events().mark(channel_->stream())});
  return {channel_->end(), this};
}

Ticket NcclComm::do_all_reduce(const Tensor& inout, Reduce how, Ticket after) {
  if (self_comm_) return self_comm_->all_reduce(inout, how, after);
  const Call call{.kind = CallKind::all_reduce, .dtype = inout.dtype, .elements = count(inout.shape), .how = how};
  return launch(call, after, [&] {
    if (call.elements == 0) return ncclSuccess;
    return api().all_reduce(inout.data, inout.data, elements(inout), type_of(inout.dtype), op_of(how), channel_->comm(),
                            channel_->stream());
  });
}

Ticket NcclComm::do_all_gather(const Tensor& shard, const Tensor& full, Ticket after) {
  if (self_comm_) return self_comm_->all_gather(shard, full, after);
  const Call call{.kind = CallKind::all_gather, .dtype = shard.dtype, .elements = count(shard.shape)};
  return launch(call, after, [&] {
    if (call.elements == 0) return ncclSuccess;
    return api().all_gather(shard.data, full.data, elements(shard), type_of(shard.dtype), channel_->comm(),
                            channel_->stream());
  });
}

Ticket NcclComm::do_reduce_scatter(const Tensor& full, const Tensor& shard, Reduce how, Ticket after) {
  if (self_comm_) return self_comm_->reduce_scatter(full, shard, how, after);
  const Call call{.kind = CallKind::reduce_scatter, .dtype = shard.dtype, .elements = count(shard.shape), .how = how};
  return launch(call, after, [&] {
    if (call.elements == 0) return ncclSuccess;
    return api().reduce_scatter(full.data, shard.data, elements(shard), type_of(shard.dtype), op_of(how),
                                channel_->comm(), channel_->stream());
  });
}

Ticket NcclComm::do_broadcast(const Tensor& inout, int root, Ticket after) {
  if (self_comm_) return self_comm_->broadcast(inout, root, after);
  const Call call{.kind = CallKind::broadcast, .dtype = inout.dtype, .elements = count(inout.shape), .root = root};
  return launch(call, after, [&] {
    if (call.elements == 0) return ncclSuccess;
    return api().broadcast(inout.data, inout.data, elements(inout), type_of(inout.dtype), root, channel_->comm(),
                           channel_->stream());
  });
}

// Grouped sends and receives, one of each for every other rank; the rank's rows to itself are copied.
Ticket NcclComm::do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                               std::span<const std::int64_t> out_rows, Ticket after) {
  if (self_comm_) return self_comm_->all_to_all(in, out, in_rows, out_rows, after);
  Shape row = in.shape;
  row[0] = 1;
  const Call call{.kind = CallKind::all_to_all, .dtype = in.dtype, .elements = count(row)};
  const auto local = static_cast<std::size_t>(rank());
  require(in_rows[local] == out_rows[local], "{}: all_to_all: rank {} sends {} rows to itself and expects {}", name(),
          world_->control().rank(), in_rows[local], out_rows[local]);
  return launch(call, after, [&] {
    CallGroup calls(api());
    std::int64_t in_begin = 0, out_begin = 0;
    for (int r = 0; r < size(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      const Tensor source = in.rows(in_begin, in_begin + in_rows[at]);
      const Tensor target = out.rows(out_begin, out_begin + out_rows[at]);
      in_begin += in_rows[at];
      out_begin += out_rows[at];
      if (r == rank()) {
        if (elements(source) > 0)
          cuda::check(
              cudaMemcpyAsync(target.data, source.data, source.bytes(), cudaMemcpyDeviceToDevice, channel_->stream()),
              "all_to_all");
        continue;
      }
      if (elements(source) > 0) calls.add([&] { return send(source, r); });
      if (elements(target) > 0) calls.add([&] { return receive(target, r); });
    }
    return calls.end();
  });
}

Ticket NcclComm::do_exchange(std::span<const Transfer> transfers, Ticket after) {
  if (self_comm_) return self_comm_->exchange(transfers, after);
  Call call{.kind = CallKind::exchange};
  for (const Transfer& transfer : transfers) call.elements += count(transfer.tensor.shape);
  const auto issue = [&] {
    CallGroup calls(api());
    for (const Transfer& transfer : transfers) {
      if (elements(transfer.tensor) == 0) continue;
      calls.add([&] {
        return transfer.send ? send(transfer.tensor, transfer.peer) : receive(transfer.tensor, transfer.peer);
      });
    }
    return calls.end();
  };
  return launch(call, after, issue, transfers);
}

std::unique_ptr<Comm> NcclComm::split(int color, int key, std::string name) {
  ControlGroup part = world_->control().split(group_, color, key, std::move(name));
  std::shared_ptr<Channel> channel;
  if (channel_) channel = world_->open_part(group_, *channel_, part);
  return std::make_unique<NcclComm>(world_, std::move(part), std::move(channel), ops_);
}

void check_gpus(Control& control, ControlGroup& world, int device, const ProcessOptions& options) {
  cudaDeviceProp properties{};
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  GpuId local{.machine = hash_text(options.machine)};
  static_assert(sizeof(local.gpu) == sizeof(properties.uuid));
  std::memcpy(local.gpu.data(), &properties.uuid, sizeof(local.gpu));
  check_gpu_ids(control, world, local, {.name = properties.name, .no_local_rank = options.no_local_rank});
}

}  // namespace

std::unique_ptr<Comm> join(Control& control, Ops& ops, const ProcessOptions& options) {
  auto* const queue = dynamic_cast<cuda::CudaOps*>(&ops);
  require(queue != nullptr, "NCCL moves tensors of a GPU only");
  ControlGroup group = control.world();
  check_gpus(control, group, queue->device(), options);
  auto world = std::make_shared<NcclWorld>(control, *queue);
  std::shared_ptr<Channel> channel = group.size() > 1 ? world->open_world(group) : nullptr;
  return std::make_unique<NcclComm>(std::move(world), std::move(group), std::move(channel), *queue);
}

}  // namespace tera::nccl
