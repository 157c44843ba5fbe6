#include "tera/comm/nccl/owning_comm.h"

#include <exception>

#include "tera/comm/timed_calls.h"

namespace tera::nccl {
namespace {

class OwningComm final : public Comm, public CallTimer {
 public:
  OwningComm(Links links, const ControlOptions& options, FunctionRef<void(std::string_view)> report,
             FunctionRef<std::unique_ptr<Comm>(Control&)> join)
      : control_(std::move(links), options, report) {
    try {
      inner_ = join(control_);
    } catch (const CommAborted&) {  // another rank's fault
      control_.leave({}, /*work_failed=*/true);
      throw;
    } catch (const std::exception& fault) {
      control_.leave(fault.what(), /*work_failed=*/true);
      throw;
    }
  }
  ~OwningComm() override {
    const bool failing = std::uncaught_exceptions() > exceptions_;
    if (failing) control_.abort("for a reason that it tells itself");
    inner_.reset();
    control_.leave({}, failing);
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view name() const override { return inner_->name(); }
  void barrier() override { inner_->barrier(); }
  std::unique_ptr<Comm> split(int color, int key, std::string name) override {
    return inner_->split(color, key, std::move(name));
  }
  void abort(std::string_view reason) noexcept override { inner_->abort(reason); }
  void note_calls(std::vector<TimedCall>* notes) override {
    if (auto* const timer = dynamic_cast<CallTimer*>(inner_.get())) timer->note_calls(notes);
  }

 private:
  Ticket do_all_reduce(const Tensor& inout, Reduce how, Ticket after) override {
    return inner_->all_reduce(inout, how, after);
  }
  Ticket do_all_gather(const Tensor& shard, const Tensor& full, Ticket after) override {
    return inner_->all_gather(shard, full, after);
  }
  Ticket do_reduce_scatter(const Tensor& full, const Tensor& shard, Reduce how, Ticket after) override {
    return inner_->reduce_scatter(full, shard, how, after);
  }
  Ticket do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                       std::span<const std::int64_t> out_rows, Ticket after) override {
    return inner_->all_to_all(in, out, in_rows, out_rows, after);
  }
  Ticket do_broadcast(const Tensor& inout, int root, Ticket after) override {
    return inner_->broadcast(inout, root, after);
  }
  Ticket do_exchange(std::span<const Transfer> transfers, Ticket after) override {
    return inner_->exchange(transfers, after);
  }

  Control control_;
  std::unique_ptr<Comm> inner_;
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace

std::unique_ptr<Comm> make_owning_comm(Links links, const ControlOptions& options,
                                       FunctionRef<void(std::string_view)> report,
                                       FunctionRef<std::unique_ptr<Comm>(Control&)> join) {
  return std::make_unique<OwningComm>(std::move(links), options, report, join);
}

}  // namespace tera::nccl
