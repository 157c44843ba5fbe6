#pragma once
// Ops on the CPU: tiles of fixed size, executed by the rank's thread pool. One file per family implements the members.

#include "tera/backend/cpu/cpu_isa.h"
#include "tera/backend/cpu/thread_pool.h"
#include "tera/ops/implement_ops.h"

namespace tera::cpu {

class CpuOps : public ImplementOps<CpuOps> {
 public:
  CpuOps(int threads, Isa isa);
  ~CpuOps() override;

  ThreadPool& pool() { return pool_; }
  Isa isa() const { return isa_; }
  // Calls are done when they return: a ticket is the time of record(), in nanoseconds.
  Ticket record() override;
  using Ops::finish;
  void finish(std::uint64_t) override {}
  double milliseconds(Ticket from, Ticket to) override { return static_cast<double>(to.id - from.id) * 1e-6; }
  const OpsTraits& traits() const override;
  void bind_workspace(std::span<std::byte> workspace) override { workspace_ = workspace; }

 private:
  template <class Self, class List>
  friend class tera::ImplementEach;
  // One op, see ImplementOps; specialised in the file of its family. Others are called by execute().
  template <class Args>
  void compute(const Args& args);
  void do_from_host(std::span<const std::byte> host, const Tensor& tensor) override;
  void do_to_host(const Tensor& tensor, std::span<std::byte> host) override;

  // The first `bytes` of the workspace; throws when the plan reserved less.
  std::span<std::byte> workspace(std::size_t bytes) const;

  ThreadPool pool_;
  Isa isa_;
  std::span<std::byte> workspace_;
};

}  // namespace tera::cpu
