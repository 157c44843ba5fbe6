#pragma once
// Any rank of any group, with nobody there: an exchange is counted and done at once.

#include "tera/base/error.h"
#include "tera/comm/comm.h"

namespace tera::test {

class StubComm : public Comm {
 public:
  StubComm(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "stub"; }
  void barrier() override {}
  std::unique_ptr<Comm> split(int, int, std::string) override { fail("a stub is not split"); }
  void abort(std::string_view) noexcept override {}

  std::int64_t messages = 0;

 private:
  Ticket do_all_reduce(const Tensor&, Reduce, Ticket) override { refuse(); }
  Ticket do_all_gather(const Tensor&, const Tensor&, Ticket) override { refuse(); }
  Ticket do_reduce_scatter(const Tensor&, const Tensor&, Reduce, Ticket) override { refuse(); }
  Ticket do_all_to_all(const Tensor&, const Tensor&, std::span<const std::int64_t>, std::span<const std::int64_t>,
                       Ticket) override {
    refuse();
  }
  Ticket do_broadcast(const Tensor&, int, Ticket) override { refuse(); }
  Ticket do_exchange(std::span<const Transfer> transfers, Ticket) override {
    require(transfers.size() == 1 && transfers[0].peer != rank_, "one message at a time, to another rank");
    ++messages;
    return {};
  }
  [[noreturn]] static void refuse() { fail("the engine only exchanges"); }

  int rank_, size_;
};

}  // namespace tera::test
