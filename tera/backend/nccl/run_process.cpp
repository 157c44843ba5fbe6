#include "tera/backend/nccl/run_process.h"

namespace tera::nccl {
namespace {

class ProcessSeat final : public Seat {
 public:
  ProcessSeat(Control& control, Join join) : control_(control), join_(join) {}
  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  std::unique_ptr<Comm> join(Ops& ops) override { return join_(control_, ops); }

 private:
  Control& control_;
  Join join_;
};

}  // namespace

int run_process(const ProcessOptions& options, FunctionRef<void(Seat&)> body, FunctionRef<void(std::string_view)> tell,
                Join join) {
  Links links =
      meet({.meeting = options.meeting, .rank = options.rank, .size = options.size, .timeout = options.timeout});
  Control control(std::move(links), {.rank = options.rank, .size = options.size, .timeout = options.timeout}, tell);
  ProcessSeat seat(control, join);
  RankOutcome outcome = run_process_rank(seat, body);
  for (const std::string& line : control.leave(outcome.fault, outcome.status != 0)) tell(told_by(options.rank, line));
  if (outcome.status == 0 && control.failed()) outcome.status = 1;
  return outcome.status;
}

}  // namespace tera::nccl
