#pragma once
// A decorator of Ops that times every call of another backend, by kind of work and by the block that made it.

#include <memory>
#include <string>
#include <vector>

#include "tera/bench/profile.h"
#include "tera/comm/timed_calls.h"
#include "tera/ops/decorator_ops.h"

namespace tera {

class ProfilingOps final : public DecoratorOps<ProfilingOps> {
 public:
  explicit ProfilingOps(std::unique_ptr<Ops> inner);
  ~ProfilingOps() override;

  // Calls are timed between start() and finish(); communication too, if `ranks` can time it.
  void start(CallTimer* ranks = nullptr);
  Profile finish();
  using Ops::finish;

  void begin_range(const char* name) override;
  void end_range() override;

 private:
  template <class Self, class List>
  friend class ImplementEach;
  // A timed call of the inner ops, see ImplementOps.
  template <class Args>
  void compute(const Args& args);

  void do_from_host(std::span<const std::byte> host, const Tensor& tensor) override;
  void do_to_host(const Tensor& tensor, std::span<std::byte> host) override;
  void do_to_host_later(const Tensor& tensor, std::span<std::byte> host) override;
  CopyPoints do_to_host_overlapped(const HostCopyArgs& args) override;
  CopyPoints do_from_host_overlapped(const HostCopyArgs& args) override;

  struct Call {
    OpKind kind;
    const char* block;
    Ticket begin, end;
  };
  template <class Work>
  void timed(OpKind kind, const Work& work);
  CopyPoints noted(const CopyPoints& copy, std::vector<CopyPoints>& async);
  Profile::Span span(Ticket begin, Ticket end);
  const char* block() const { return ranges_.empty() ? "other" : ranges_.back(); }

  bool on_ = false;
  Ticket first_;
  CallTimer* ranks_ = nullptr;
  std::vector<TimedCall> between_ranks_;
  std::vector<Call> calls_;
  std::vector<CopyPoints> to_host_, from_host_;  // on queues of their own
  std::vector<const char*> ranges_;
};

}  // namespace tera
