#include "tera/backend/mpi/make_mpi.h"

#include "tera/backend/mpi/engine.h"
#include "tera/backend/mpi/mpi_comm.h"

namespace tera::mpi {
namespace {

class MpiSeat final : public Seat {
 public:
  explicit MpiSeat(Engine& engine) : engine_(engine) {}
  int rank() const override { return engine_.rank(); }
  int size() const override { return engine_.size(); }
  std::unique_ptr<Comm> join(Ops& ops) override;

 private:
  Engine& engine_;
  std::uint64_t joins_ = 0;  // as many on every rank: tests may join again
};

std::unique_ptr<Comm> MpiSeat::join(Ops& ops) {
  require_user(!ops.traits().asynchronous,
               "ranks as processes compute on the CPU only (dist.device=cpu); several ranks share a GPU as threads");
  std::vector<int> members;
  for (int r = 0; r < size(); ++r) members.push_back(r);
  constexpr std::uint64_t world_id = std::uint64_t{1} << 63;  // Engine::new_group_id makes smaller ones
  return make_mpi_comm(engine_, engine_.add_group("world", world_id | ++joins_, std::move(members)), ops);
}

}  // namespace

bool built_in() { return true; }

int run_process(const MpiOptions& options, Ops& combiner, FunctionRef<void(Seat&)> body,
                FunctionRef<void(std::string_view)> tell) {
  Engine engine(options, combiner);
  MpiSeat seat(engine);
  RankOutcome outcome = run_process_rank(seat, body);
  const std::string fault = engine.leave(outcome.fault, outcome.status != 0);
  if (!fault.empty()) tell(told_by(engine.rank(), fault));
  if (outcome.status == 0 && engine.failed()) outcome.status = 1;
  engine.end(outcome.status);
  return outcome.status;
}

}  // namespace tera::mpi
