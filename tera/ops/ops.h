#pragma once
// The backend interface: all work on tensors goes through it. A call is `ops(GemmArgs{...})`, with one of the argument
// structs of op_list.h; a backend (plan, a dry run which counts and touches no memory; cpu; cuda) implements each as
// implement_ops.h says.
//
// An Ops object is one queue, as a CUDA stream: work is done in the order of the calls, but a call may return before it
// is done (traits()).

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "tera/ops/host_copy.h"
#include "tera/ops/op_list.h"
#include "tera/ops/recording.h"
#include "tera/ops/ticket.h"
#include "tera/ops/traits.h"

namespace tera {

struct PlannedCalls;

// One op of a backend. Its arguments have passed their check().
template <class Args>
class OpSlot {
 public:
  virtual ~OpSlot() = default;

 protected:
  virtual void execute(const Args& args) = 0;
};

template <class List>
class OpSlots;
template <class... Args>
class OpSlots<OpList<Args...>> : public OpSlot<Args>... {
 protected:
  using OpSlot<Args>::execute...;
};

class Ops : public Timeline, public OpSlots<AllOps> {
 public:
  // One op: `ops(NormArgs{...})`. Args is one of AllOps, and its header is included by the caller.
  template <class Args>
  void operator()(const Args& args) {
    args.check();
    execute(args);
  }
  // A GEMM and its activation are one call where the backend fuses them, else two.
  void operator()(const GemmActivationArgs& args);
  void operator()(const GemmActivationBackArgs& args);

  // Whether the backend runs this call as one fused kernel instead of two.
  virtual bool fuses(const GemmActivationArgs& /*args*/) const { return false; }
  virtual bool fuses(const GemmActivationBackArgs& /*args*/) const { return false; }

  // Synchronous copies between host memory and a dense tensor of this device: `host` may be reused after from_host, and
  // holds the bytes when to_host returns.
  void from_host(std::span<const std::byte> host, const Tensor& tensor);
  void to_host(const Tensor& tensor, std::span<std::byte> host);

  // An asynchronous copy on this queue: the bytes are in `host` when a later record() is finished. `host` comes from
  // Device::allocate_host and is not touched until then.
  void to_host_later(const Tensor& tensor, std::span<std::byte> host);

  // Copies that overlap with this queue, on a copy stream per direction where the device has them. Until the end that
  // is returned, neither side may be changed, nor the target be read.
  CopyPoints to_host_overlapped(const HostCopyArgs& args);
  CopyPoints from_host_overlapped(const HostCopyArgs& args);

  using Timeline::finish;
  virtual Ticket record() = 0;                              // a point after all calls so far, as a CUDA event
  virtual void wait(Ticket ticket);                         // this queue waits, and the host only where it must
  void finish(Ticket ticket);                               // the host waits; the ticket may be of any timeline
  virtual double milliseconds(Ticket from, Ticket to) = 0;  // between two finished tickets of this queue
  virtual void reserve_tickets(std::size_t /*count*/) {}    // so many latest tickets stay valid from now on

  virtual const OpsTraits& traits() const = 0;

  // The backend's workspace (packed panels, partial sums), as large as WorkspaceRules say in the plan.
  virtual void bind_workspace(std::span<std::byte> workspace) = 0;
  // Autotuning: selects the kernels of the planned calls, after bind_workspace and before the first of these calls;
  // `spare` is device memory for trials, overwritten.
  virtual void prepare(const PlannedCalls& /*calls*/, std::span<std::byte> /*spare*/) {}

  // CUDA graph capture: records the work of `calls` without doing it. Work that cannot be captured (a copy from host
  // memory, a wait of the host) makes the attempt fail; `calls` may then have ended early.
  virtual RecordingAttempt record_calls(const std::function<void()>& /*calls*/) {
    return {nullptr, "this device records nothing"};
  }

  // Remarks for the user about the selected kernels, a line each; empty: nothing unusual.
  virtual std::string remarks() const { return {}; }

  // Ranges that name the next calls in profiles, as those of NVTX; they nest. `name` lives as long as the program.
  virtual void begin_range(const char* /*name*/) {}
  virtual void end_range() {}

 private:
  virtual void do_from_host(std::span<const std::byte> host, const Tensor& tensor) = 0;
  virtual void do_to_host(const Tensor& tensor, std::span<std::byte> host) = 0;
  virtual void do_to_host_later(const Tensor& tensor, std::span<std::byte> host) { do_to_host(tensor, host); }
  virtual CopyPoints do_to_host_overlapped(const HostCopyArgs& args);  // the default uses this queue
  virtual CopyPoints do_from_host_overlapped(const HostCopyArgs& args);
};

class RangeScope {
 public:
  RangeScope(Ops& ops, const char* name) : ops_(ops) { ops_.begin_range(name); }
  ~RangeScope() { ops_.end_range(); }
  RangeScope(const RangeScope&) = delete;
  RangeScope& operator=(const RangeScope&) = delete;

 private:
  Ops& ops_;
};

}  // namespace tera
