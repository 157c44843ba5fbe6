#pragma once
// A queue on the CPU that records calls as strictly as a CUDA graph: the arguments are those of the recording, whatever
// the host's variables are when it is replayed. A step that reads anything else from the host would compute something
// else.

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "tera/base/error.h"
#include "tera/ops/all_ops.h"
#include "tera/ops/decorator_ops.h"

namespace tera::test {

class FrozenOps final : public DecoratorOps<FrozenOps> {
 public:
  explicit FrozenOps(std::unique_ptr<Ops> inner) : DecoratorOps(std::move(inner)), traits_(this->inner().traits()) {
    traits_.asynchronous = true;  // as backends that can record are
  }

  int replayed = 0;      // recordings
  bool refuses = false;  // in the middle of the calls

  RecordingAttempt record_calls(const std::function<void()>& calls) override {
    auto recording = std::make_unique<Calls>(*this);
    recorded_ = &recording->calls;
    RecordingAttempt attempt;
    try {
      calls();
      attempt.recording = std::move(recording);
    } catch (const std::exception& error) {
      attempt.why_not = error.what();
    }
    recorded_ = nullptr;
    return attempt;
  }

  using Ops::finish;
  // Keeps few points unless more are reserved, so that a caller that forgets to reserve them fails.
  void finish(std::uint64_t id) override {
    require(id + kept_ > points_, "point {} is not among the last {}", id, kept_);
  }
  Ticket record() override { return {++points_, this}; }
  void reserve_tickets(std::size_t count) override { kept_ = std::max(kept_, count); }
  void wait(Ticket ticket) override {
    if (ticket.timeline != this) inner().wait(ticket);
  }
  const OpsTraits& traits() const override { return traits_; }

 private:
  template <class Self, class List>
  friend class tera::ImplementEach;
  // A call that is recorded or made, see ImplementOps.
  template <class Args>
  void compute(const Args& args) {
    does([this, args] { inner()(args); });
  }
  void compute(const CombineArgs& args) {
    does([this, args, sources = std::vector(args.sources.begin(), args.sources.end())] {
      CombineArgs kept = args;
      kept.sources = sources;
      inner()(kept);
    });
  }

  struct Calls final : Recording {
    explicit Calls(FrozenOps& of) : ops(of) {}
    void replay() override {
      ++ops.replayed;
      for (const auto& call : calls) call();
    }
    std::size_t size() const override { return calls.size(); }
    FrozenOps& ops;
    std::vector<std::function<void()>> calls;
  };

  template <class Call>
  void does(Call&& call) {
    if (!recorded_) return call();
    require(!refuses || recorded_->size() < 20, "this call cannot be recorded");
    recorded_->push_back(std::forward<Call>(call));
  }

  void do_from_host(std::span<const std::byte> host, const Tensor& tensor) override {
    require(!recorded_, "bytes of the host's memory cannot be recorded");
    inner().from_host(host, tensor);
  }
  void do_to_host(const Tensor& tensor, std::span<std::byte> host) override {
    require(!recorded_, "the host cannot wait for what is recorded");
    inner().to_host(tensor, host);
  }
  void do_to_host_later(const Tensor& tensor, std::span<std::byte> host) override { do_to_host(tensor, host); }
  // In this queue, with tickets of its own.
  CopyPoints do_to_host_overlapped(const HostCopyArgs& args) override {
    wait(args.after);
    wait(args.and_after);
    const Ticket begin = record();
    do_to_host(args.tensor, args.host);
    return {begin, record()};
  }
  CopyPoints do_from_host_overlapped(const HostCopyArgs& args) override {
    wait(args.after);
    wait(args.and_after);
    const Ticket begin = record();
    do_from_host(args.host, args.tensor);
    return {begin, record()};
  }

  OpsTraits traits_;
  std::uint64_t points_ = 0;
  std::size_t kept_ = 4;
  std::vector<std::function<void()>>* recorded_ = nullptr;
};

}  // namespace tera::test
