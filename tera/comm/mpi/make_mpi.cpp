#include "tera/comm/mpi/make_mpi.h"

#include <fmt/core.h>

#include <exception>

#include "tera/comm/mpi/engine.h"
#include "tera/comm/mpi/mpi_comm.h"

namespace tera::mpi {
namespace {

// Where the ranks find no control plane, nothing else can report why, or say who kills the job: rank 0, if it is there.
control::Links rendezvous_or_end(Engine& engine, FunctionRef<void(std::string_view)> report) {
  try {
    return engine.rendezvous();
  } catch (const std::exception& error) {
    report(error.what());
    engine.end(dynamic_cast<const UserError*>(&error) != nullptr ? 2 : 1, {.kills = engine.rank() == 0});
    throw;
  }
}

}  // namespace

bool built_in() { return true; }

int run_process(const MpiOptions& options, Ops& combiner, FunctionRef<void(RankHandle&)> body,
                FunctionRef<void(std::string_view)> report, control::Join join_gpu) {
  Engine engine(options, combiner);
  control::Links links = rendezvous_or_end(engine, report);
  control::Control control(std::move(links), {.rank = engine.rank(), .size = engine.size(), .timeout = options.timeout},
                           report);
  engine.attach(control);
  const auto join = [&](control::Control& joined, Ops& ops) {
    check_processes(joined.size(), ops.traits());
    return ops.traits().asynchronous ? join_gpu(joined, ops)
                                     : make_mpi_comm(engine, engine.add_group(joined.world()), ops);
  };
  const control::ProcessEnd end =
      control::run_rank(control, body, report, join, [&] { return engine.end_transfers(); });
  engine.end(end.status, end.job);
  return end.status;
}

}  // namespace tera::mpi
