#include "tera/backend/nccl/make_nccl.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "tera/backend/nccl/nccl_comm.h"
#include "tera/backend/nccl/owning_comm.h"
#include "tera/backend/nccl/run_process.h"
#include "tera/base/machine.h"

namespace tera::nccl {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<Comm> join_on_gpu(Control& control, Ops& ops, const ProcessOptions& options) {
  require_user(ops.traits().asynchronous,
               "processes that meet over MASTER_ADDR need a GPU each (dist.device=cuda); on the CPU, start them with "
               "mpirun -n N or srun --mpi=pmix, or one process alone, whose ranks are threads: --ranks N");
  return make_nccl_comm(control, ops, options);
}

// What ranks tell each other over MPI: where they are, and rank 0 where it listens.
struct Invitation {
  std::array<char, 256> host{};
  std::int64_t port = 0;
  std::uint64_t network = network_place();
};

template <class T>
std::vector<T> gather_over(Comm& host, Ops& host_ops, const T& own) {
  std::vector<T> all(static_cast<std::size_t>(host.size()));
  all[static_cast<std::size_t>(host.rank())] = own;
  const Tensor whole = make_tensor(all.data(), shape(host.size(), sizeof(T)), DType::u8);
  host_ops.finish(host.all_gather(whole.rows(host.rank(), host.rank() + 1), whole, host_ops.record()));
  return all;
}

}  // namespace

bool built_in() { return true; }

int run_process(const ProcessOptions& options, FunctionRef<void(Seat&)> body,
                FunctionRef<void(std::string_view)> tell) {
  return run_process(options, body, tell,
                     [&](Control& control, Ops& ops) { return join_on_gpu(control, ops, options); });
}

std::unique_ptr<Comm> join_over(Comm& host, Ops& host_ops, Ops& ops, const ProcessOptions& options,
                                FunctionRef<void(std::string_view)> tell) {
  Invitation own;
  require(::gethostname(own.host.data(), own.host.size() - 1) == 0, "this machine has no name");
  std::optional<Listener> listener;
  if (host.rank() == 0) {
    listener = listen_at("", 0, 0);
    own.port = listener->port;
  }
  const std::vector<Invitation> all = gather_over(host, host_ops, own);
  const bool one_machine =
      std::all_of(all.begin(), all.end(), [&](const Invitation& other) { return other.network == all[0].network; });
  const Meeting meeting{.host = one_machine ? "localhost" : all[0].host.data(),
                        .port = static_cast<int>(all[0].port),
                        .spare_ports = 0,
                        .job = fmt::format("{}:{}", all[0].host.data(), all[0].port)};
  Links links = meet({.meeting = meeting, .rank = host.rank(), .size = host.size(), .timeout = options.timeout},
                     std::move(listener));
  ControlOptions control{.rank = host.rank(), .size = host.size(), .timeout = options.timeout};
  control.lost_is_an_error = true;  // MPI tells faults
  return make_owning_comm(std::move(links), control, tell,
                          [&](Control& met) { return make_nccl_comm(met, ops, options); });
}

}  // namespace tera::nccl
