#pragma once
// Ops around other Ops: whatever is no op goes through to the inner ones, but for record_calls, since a replay would
// not come back here. A decorator with tickets of its own overrides the overlapped copies, too. `Self::compute` says
// what becomes of an op:
//
//   template <class Args>
//   void compute(const Args& args) { timed([&] { inner()(args); }); }

#include <memory>
#include <string>
#include <utility>

#include "tera/ops/implement_ops.h"

namespace tera {

template <class Self>
class DecoratorOps : public ImplementOps<Self> {
 public:
  explicit DecoratorOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)) {}
  Ops& inner() { return *inner_; }

  Ticket record() override { return inner_->record(); }
  void wait(Ticket ticket) override { inner_->wait(ticket); }
  using Ops::finish;
  void finish(std::uint64_t id) override { inner_->finish(id); }
  double milliseconds(Ticket from, Ticket to) override { return inner_->milliseconds(from, to); }
  void reserve_tickets(std::size_t count) override { inner_->reserve_tickets(count); }
  const OpsTraits& traits() const override { return inner_->traits(); }
  bool fuses(const GemmActivationArgs& args) const override { return inner_->fuses(args); }
  bool fuses(const GemmActivationBackArgs& args) const override { return inner_->fuses(args); }
  void bind_workspace(std::span<std::byte> workspace) override { inner_->bind_workspace(workspace); }
  void prepare(const PlannedCalls& calls, std::span<std::byte> spare) override { inner_->prepare(calls, spare); }
  std::string remarks() const override { return inner_->remarks(); }
  void begin_range(const char* name) override { inner_->begin_range(name); }
  void end_range() override { inner_->end_range(); }

 private:
  void do_from_host(std::span<const std::byte> host, const Tensor& to) override { inner_->from_host(host, to); }
  void do_to_host(const Tensor& from, std::span<std::byte> host) override { inner_->to_host(from, host); }
  void do_to_host_later(const Tensor& from, std::span<std::byte> host) override { inner_->to_host_later(from, host); }
  CopyPoints do_to_host_overlapped(const HostCopyArgs& args) override { return inner_->to_host_overlapped(args); }
  CopyPoints do_from_host_overlapped(const HostCopyArgs& args) override { return inner_->from_host_overlapped(args); }

  std::unique_ptr<Ops> inner_;
};

}  // namespace tera
