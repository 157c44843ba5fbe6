#include "tera/comm/control/run_process.h"

namespace tera::control {
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

ProcessEnd run_rank(Control& control, FunctionRef<void(RankHandle&)> body, FunctionRef<void(std::string_view)> report,
                    Join join, TransfersOver transfers_over) {
  ProcessRankHandle rank_handle(control, join);
  const RankOutcome outcome = run_process_rank(rank_handle, body);
  ProcessEnd end{.status = outcome.status, .job = control.leave(outcome.fault, outcome.status != 0, transfers_over())};
  for (const std::string& line : end.job.lines) report(report_of(control.rank(), line));
  control.await_reports();
  if (end.status == 0 && control.failed()) end.status = 1;
  return end;
}

int run_process(const RendezvousOptions& options, FunctionRef<void(RankHandle&)> body,
                FunctionRef<void(std::string_view)> report, Join join) {
  Links links = rendezvous(options);
  Control control(std::move(links), {.rank = options.rank, .size = options.size, .timeout = options.timeout}, report);
  return run_rank(control, body, report, join, [] { return true; }).status;
}

}  // namespace tera::control
