#include "tera/comm/mpi/make_mpi.h"

#include "tera/comm/mpi/engine.h"
#include "tera/comm/mpi/mpi_comm.h"

namespace tera::mpi {
namespace {

class MpiRankHandle final : public RankHandle {
 public:
  explicit MpiRankHandle(Engine& engine) : engine_(engine) {}
  int rank() const override { return engine_.rank(); }
  int size() const override { return engine_.size(); }
  std::unique_ptr<Comm> join(Ops& ops) override;

 private:
  Engine& engine_;
  std::uint64_t joins_ = 0;  // equal on every rank: tests may join again
};

std::unique_ptr<Comm> MpiRankHandle::join(Ops& ops) {
  require_user(!ops.traits().asynchronous,
               "ranks as processes compute on the CPU only (dist.device=cpu); several ranks share a GPU as threads");
  std::vector<int> members;
  for (int r = 0; r < size(); ++r) members.push_back(r);
  constexpr std::uint64_t world_id = std::uint64_t{1} << 63;  // Engine::new_group_id makes smaller ones
  return make_mpi_comm(engine_, engine_.add_group("world", world_id | ++joins_, std::move(members)), ops);
}

}  // namespace

bool built_in() { return true; }

int run_process(const MpiOptions& options, Ops& combiner, FunctionRef<void(RankHandle&)> body,
                FunctionRef<void(std::string_view)> report) {
  Engine engine(options, combiner);
  MpiRankHandle rank_handle(engine);
  RankOutcome outcome = run_process_rank(rank_handle, body);
  const std::string fault = engine.leave(outcome.fault, outcome.status != 0);
  if (!fault.empty()) report(report_of(engine.rank(), fault));
  if (outcome.status == 0 && engine.failed()) outcome.status = 1;
  engine.end(outcome.status);
  return outcome.status;
}

}  // namespace tera::mpi
