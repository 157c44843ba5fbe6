#include "tera/comm/world.h"

#include <fmt/core.h>

#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "tera/ops/combine.h"

namespace tera {
namespace {

class ThreadRankHandle final : public RankHandle {
 public:
  ThreadRankHandle(ThreadCoordinator& coordinator, int rank, int size)
      : coordinator_(coordinator), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Comm> join(Ops& ops) override { return coordinator_.join(rank_, ops); }

 private:
  ThreadCoordinator& coordinator_;
  int rank_, size_;
};

// How a rank ended.
struct Outcome {
  bool failed = false, user = false;
  bool follows = false;  // a consequence of another rank's fault, which that rank reports
  std::string message;
};

Outcome run_rank(RankHandle& rank_handle, FunctionRef<void(RankHandle&)> body) {
  try {
    body(rank_handle);
    return {};
  } catch (const UserError& error) {
    return {.failed = true, .user = true, .message = error.what()};
  } catch (const CommError& error) {
    return {.failed = true, .follows = true, .message = error.what()};
  } catch (const std::exception& error) {
    return {.failed = true, .message = error.what()};
  } catch (...) {
    return {.failed = true, .message = "an exception of unknown type"};
  }
}

void throw_faults(const std::vector<Outcome>& outcomes, const ThreadCoordinator::Failure& first) {
  Outcome fault = outcomes[static_cast<std::size_t>(first.rank)];
  if (!fault.failed) fault.message = first.reason;  // the rank called abort and went on
  std::string text = report_of(first.rank, fault.message);
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const Outcome& other = outcomes[rank];
    if (other.failed && !other.follows && other.message != fault.message)
      text += "\n" + report_of(static_cast<int>(rank), other.message);
  }
  if (fault.user) throw UserError(text);
  throw Error(text);
}

}  // namespace

std::string report_of(int rank, const std::string& message) {
  constexpr std::string_view word = "rank ";
  const std::size_t end = message.starts_with(word) ? message.find_first_not_of("0123456789", word.size()) : 0;
  const bool names_rank = end > word.size() && end < message.size() && message[end] == ':';
  return names_rank ? message : fmt::format("rank {}: {}", rank, message);
}

void run_threads(int ranks, const ThreadCommOptions& options, FunctionRef<void(RankHandle&)> body) {
  ThreadCoordinator coordinator(ranks, options);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  const auto run = [&](int rank) {
    ThreadRankHandle rank_handle(coordinator, rank, ranks);
    Outcome& outcome = outcomes[static_cast<std::size_t>(rank)] = run_rank(rank_handle, body);
    if (outcome.failed) coordinator.abort(rank, outcome.message);
  };
  std::vector<std::thread> threads;
  std::string not_started;
  try {
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  } catch (const std::system_error& error) {
    not_started =
        fmt::format("{} ranks as threads: the system gives no more than {} ({})", ranks, threads.size(), error.what());
    coordinator.abort(static_cast<int>(threads.size()), not_started);
  }
  for (std::thread& thread : threads) thread.join();
  if (!not_started.empty()) throw UserError(not_started);
  if (const auto first = coordinator.failure()) throw_faults(outcomes, *first);
}

void report_faults(Comm& world, FunctionRef<void()> work) {
  try {
    work();
  } catch (const CommAborted&) {  // another rank reports
    throw;
  } catch (const std::exception& error) {
    world.abort(error.what());
    throw;
  } catch (...) {
    world.abort("an exception of unknown type");
    throw;
  }
}

void check_processes(int processes, const OpsTraits& traits) {
  require_user(traits.asynchronous || processes <= static_cast<int>(CombineArgs::max_sources),
               "{} processes were started; on CPUs (dist.device=cpu) at most {} can work together, on GPUs "
               "(dist.device=cuda) any number",
               processes, CombineArgs::max_sources);
}

RankOutcome run_process_rank(RankHandle& rank_handle, FunctionRef<void(RankHandle&)> body) {
  try {
    body(rank_handle);
    return {};
  } catch (const UserError& error) {
    return {.status = 2, .fault = error.what()};
  } catch (const CommAborted&) {  // another rank reports
    return {.status = 1};
  } catch (const std::exception& error) {
    return {.status = 1, .fault = error.what()};
  } catch (...) {
    return {.status = 1, .fault = "an exception of unknown type"};
  }
}

}  // namespace tera
