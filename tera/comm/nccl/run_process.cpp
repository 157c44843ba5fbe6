#include "tera/comm/nccl/run_process.h"

namespace tera::nccl {
namespace {

class ProcessRankHandle final : public RankHandle {
 public:
  ProcessRankHandle(Control& control, Join join) : control_(control), join_(join) {}
  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  std::unique_ptr<Comm> join(Ops& ops) override { return join_(control_, ops); }

 private:
  Control& control_;
  Join join_;
};

}  // namespace

int run_process(const ProcessOptions& options, FunctionRef<void(RankHandle&)> body,
                FunctionRef<void(std::string_view)> report, Join join) {
  control::Links links = control::rendezvous(
      {.address = options.address, .rank = options.rank, .size = options.size, .timeout = options.timeout});
  Control control(std::move(links), {.rank = options.rank, .size = options.size, .timeout = options.timeout}, report);
  ProcessRankHandle rank_handle(control, join);
  RankOutcome outcome = run_process_rank(rank_handle, body);
  for (const std::string& line : control.leave(outcome.fault, outcome.status != 0))
    report(report_of(options.rank, line));
  if (outcome.status == 0 && control.failed()) outcome.status = 1;
  return outcome.status;
}

}  // namespace tera::nccl
