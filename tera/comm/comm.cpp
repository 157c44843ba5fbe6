// Checks of a collective's arguments on its own rank, before any rank waits.

#include "tera/comm/comm.h"

#include "tera/ops/check.h"
#include "tera/ops/combine.h"

namespace tera {
namespace {

using check::dense, check::dtype, check::that;

// A tensor of no elements needs no memory.
void present_and_dense(std::string_view op, std::string_view name, const Tensor& tensor) {
  that(tensor.shape.rank >= 1, op, "tensors have at least one dim");
  if (count(tensor.shape) > 0) dense(op, name, tensor);
}

void check_reduce(std::string_view op, const Tensor& tensor, Reduce how) {
  that(can_combine(tensor.dtype, how), op, "u8 is not reduced, and integers have no mean");
}

void check_parts(std::string_view op, const Tensor& shard, const Tensor& full, int ranks) {
  present_and_dense(op, "shard", shard);
  present_and_dense(op, "full", full);
  Shape wanted = shard.shape;
  wanted[0] *= ranks;
  if (full.shape != wanted || full.dtype != shard.dtype)
    fail("{}: full is {}, expected {}{} for {} shards", op, to_string(full), name_of(shard.dtype), to_string(wanted),
         ranks);
}

void check_rows(std::string_view op, std::string_view name, const Tensor& tensor, std::span<const std::int64_t> rows,
                int ranks) {
  present_and_dense(op, name, tensor);
  std::int64_t sum = 0;
  for (std::int64_t count : rows) {
    that(count >= 0, op, "row counts are not negative");
    sum += count;
  }
  if (rows.size() != static_cast<std::size_t>(ranks) || sum > tensor.dim(0))
    fail("{}: {} is {}, but has {} row counts with {} rows in all, for {} ranks", op, name, to_string(tensor),
         rows.size(), sum, ranks);
}

}  // namespace

Ticket Comm::all_reduce(const Tensor& inout, Reduce how, Ticket after) {
  present_and_dense("all_reduce", "inout", inout);
  check_reduce("all_reduce", inout, how);
  return do_all_reduce(inout, how, after);
}

Ticket Comm::all_gather(const Tensor& shard, const Tensor& full, Ticket after) {
  check_parts("all_gather", shard, full, size());
  return do_all_gather(shard, full, after);
}

Ticket Comm::reduce_scatter(const Tensor& full, const Tensor& shard, Reduce how, Ticket after) {
  check_parts("reduce_scatter", shard, full, size());
  check_reduce("reduce_scatter", full, how);
  return do_reduce_scatter(full, shard, how, after);
}

Ticket Comm::all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t> in_rows,
                        std::span<const std::int64_t> out_rows, Ticket after) {
  check_rows("all_to_all", "in", in, in_rows, size());
  check_rows("all_to_all", "out", out, out_rows, size());
  if (in.rows(0, 0).shape != out.rows(0, 0).shape || in.dtype != out.dtype)
    fail("all_to_all: in is {}, out is {}; their rows must be alike", to_string(in), to_string(out));
  return do_all_to_all(in, out, in_rows, out_rows, after);
}

Ticket Comm::broadcast(const Tensor& inout, int root, Ticket after) {
  present_and_dense("broadcast", "inout", inout);
  require(root >= 0 && root < size(), "broadcast from rank {} in a group of {}", root, size());
  return do_broadcast(inout, root, after);
}

Ticket Comm::exchange(std::span<const Transfer> transfers, Ticket after) {
  for (const Transfer& transfer : transfers) {
    present_and_dense("exchange", transfer.send ? "a tensor to send" : "a tensor to receive", transfer.tensor);
    require(transfer.peer >= 0 && transfer.peer < size(), "exchange with rank {} in a group of {}", transfer.peer,
            size());
  }
  return do_exchange(transfers, after);
}

}  // namespace tera
