// The communicator of one rank: collectives are copies, and none where source and target are the same memory.

#include <algorithm>

#include "tera/comm/comm.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"

namespace tera {
namespace {

class SelfComm final : public Comm {
 public:
  SelfComm(Ops& ops, std::string name) : ops_(ops), name_(std::move(name)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string_view name() const override { return name_; }
  void barrier() override {}
  std::unique_ptr<Comm> split(int, int, std::string name) override { return make_self_comm(ops_, std::move(name)); }
  void abort(std::string_view) noexcept override {}

 private:
  Ticket do_all_reduce(const Tensor&, Reduce, Ticket after) override { return after; }
  Ticket do_all_gather(const Tensor& shard, const Tensor& full, Ticket after) override {
    return copy(shard, full, after);
  }
  Ticket do_reduce_scatter(const Tensor& full, const Tensor& shard, Reduce, Ticket after) override {
    return copy(full, shard, after);
  }
  Ticket do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                       std::span<const std::int64_t> out_rows, Ticket after) override {
    require(in_rows[0] == out_rows[0], "{}: all_to_all sends {} rows to itself and expects {}", name_, in_rows[0],
            out_rows[0]);
    return copy(in.rows(0, in_rows[0]), out.rows(0, out_rows[0]), after);
  }
  Ticket do_broadcast(const Tensor&, int, Ticket after) override { return after; }
  Ticket do_exchange(std::span<const Transfer> transfers, Ticket after) override;

  Ticket copy(const Tensor& from, const Tensor& to, Ticket after) {
    if (from.data == to.data || count(from.shape) == 0) return after;
    ops_.wait(after);
    ops_(CopyArgs{.src = from, .dst = to});
    return ops_.record();
  }

  Ops& ops_;
  std::string name_;
};

// The n-th send matches the n-th receive.
Ticket SelfComm::do_exchange(std::span<const Transfer> transfers, Ticket after) {
  const auto is_send = [](const Transfer& t) { return t.send; };
  const auto is_receive = [](const Transfer& t) { return !t.send; };
  auto to = std::find_if(transfers.begin(), transfers.end(), is_receive);
  for (const Transfer& from : transfers) {
    if (!is_send(from)) continue;
    require(to != transfers.end(), "{}: more sends to itself than receives", name_);
    if (from.tensor.shape != to->tensor.shape || from.tensor.dtype != to->tensor.dtype)
      fail("{}: sends {} to itself, but receives {}", name_, to_string(from.tensor), to_string(to->tensor));
    after = copy(from.tensor, to->tensor, after);
    to = std::find_if(to + 1, transfers.end(), is_receive);
  }
  require(to == transfers.end(), "{}: more receives from itself than sends", name_);
  return after;
}

}  // namespace

std::unique_ptr<Comm> make_self_comm(Ops& ops, std::string name) {
  return std::make_unique<SelfComm>(ops, std::move(name));
}

}  // namespace tera
