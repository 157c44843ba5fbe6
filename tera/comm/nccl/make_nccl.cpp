#include "tera/comm/nccl/make_nccl.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "tera/base/machine.h"
#include "tera/comm/nccl/nccl_comm.h"
#include "tera/comm/nccl/owning_comm.h"
#include "tera/comm/nccl/run_process.h"

namespace tera::nccl {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<Comm> join_on_gpu(Control& control, Ops& ops, const ProcessOptions& options) {
  require_user(ops.traits().asynchronous,
               "processes that meet over MASTER_ADDR need a GPU each (dist.device=cuda); on the CPU, start them with "
               "mpirun -n N or srun --mpi=pmix, or one process alone, whose ranks are threads: --ranks N");
  return make_nccl_comm(control, ops, options);
}

// What ranks gather over MPI: the host of each, and the port at which rank 0 listens.
struct ListenAddress {
  std::array<char, 256> host{};
  std::int64_t port = 0;
  std::uint64_t network = network_domain_id();
};

template <class T>
std::vector<T> gather_over(Comm& host, Ops& host_ops, const T& local) {
  std::vector<T> all(static_cast<std::size_t>(host.size()));
  all[static_cast<std::size_t>(host.rank())] = local;
  const Tensor full = make_tensor(all.data(), shape(host.size(), sizeof(T)), DType::u8);
  host_ops.finish(host.all_gather(full.rows(host.rank(), host.rank() + 1), full, host_ops.record()));
  return all;
}

}  // namespace

bool built_in() { return true; }

int run_process(const ProcessOptions& options, FunctionRef<void(RankHandle&)> body,
                FunctionRef<void(std::string_view)> report) {
  return run_process(options, body, report,
                     [&](Control& control, Ops& ops) { return join_on_gpu(control, ops, options); });
}

std::unique_ptr<Comm> join_over(Comm& host, Ops& host_ops, Ops& ops, const ProcessOptions& options,
                                FunctionRef<void(std::string_view)> report) {
  ListenAddress local;
  require(::gethostname(local.host.data(), local.host.size() - 1) == 0, "this machine has no name");
  std::optional<control::Listener> listener;
  if (host.rank() == 0) {
    listener = control::listen_at("", 0, 0);
    local.port = listener->port;
  }
  const std::vector<ListenAddress> all = gather_over(host, host_ops, local);
  const bool one_machine =
      std::all_of(all.begin(), all.end(), [&](const ListenAddress& other) { return other.network == all[0].network; });
  const RendezvousAddress address{.host = one_machine ? "localhost" : all[0].host.data(),
                                  .port = static_cast<int>(all[0].port),
                                  .spare_ports = 0,
                                  .job = fmt::format("{}:{}", all[0].host.data(), all[0].port)};
  Links links = control::rendezvous(
      {.address = address, .rank = host.rank(), .size = host.size(), .timeout = options.timeout}, std::move(listener));
  control::ControlOptions control{.rank = host.rank(), .size = host.size(), .timeout = options.timeout};
  control.lost_is_an_error = true;  // faults are reported over MPI
  return make_owning_comm(std::move(links), control, report,
                          [&](Control& met) { return make_nccl_comm(met, ops, options); });
}

}  // namespace tera::nccl
