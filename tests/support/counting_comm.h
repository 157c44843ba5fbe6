#pragma once
// A Comm that forwards every call and counts it under the name of its group; the groups split from it do so, too.

#include <map>

#include "tera/comm/comm.h"

namespace tera::test {

using CallsByGroup = std::map<std::string, std::int64_t>;  // an exchange counts as its sends

class CountingComm final : public Comm {
 public:
  CountingComm(std::unique_ptr<Comm> comm, CallsByGroup& calls) : comm_(std::move(comm)), calls_(calls) {}

  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }
  std::string_view name() const override { return comm_->name(); }
  void barrier() override { comm_->barrier(); }
  std::unique_ptr<Comm> split(int color, int key, std::string group) override {
    return std::make_unique<CountingComm>(comm_->split(color, key, std::move(group)), calls_);
  }
  void abort(std::string_view reason) noexcept override { comm_->abort(reason); }

 private:
  Comm& counted(std::int64_t calls = 1) {
    calls_[std::string(name())] += calls;
    return *comm_;
  }
  Ticket do_all_reduce(const Tensor& inout, Reduce how, Ticket after) override {
    return counted().all_reduce(inout, how, after);
  }
  Ticket do_all_gather(const Tensor& shard, const Tensor& full, Ticket after) override {
    return counted().all_gather(shard, full, after);
  }
  Ticket do_reduce_scatter(const Tensor& full, const Tensor& shard, Reduce how, Ticket after) override {
    return counted().reduce_scatter(full, shard, how, after);
  }
  Ticket do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                       std::span<const std::int64_t> out_rows, Ticket after) override {
    return counted().all_to_all(in, out, in_rows, out_rows, after);
  }
  Ticket do_broadcast(const Tensor& inout, int root, Ticket after) override {
    return counted().broadcast(inout, root, after);
  }
  Ticket do_exchange(std::span<const Transfer> transfers, Ticket after) override {
    std::int64_t sends = 0;
    for (const Transfer& transfer : transfers) sends += transfer.send ? 1 : 0;
    return counted(sends).exchange(transfers, after);
  }

  std::unique_ptr<Comm> comm_;
  CallsByGroup& calls_;
};

}  // namespace tera::test
