#include "tests/parallel/comm_body.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/parallel/comm_values.h"
#include "tests/support/expect_error.h"

#include "tera/ops/combine.h"
#include "tera/ops/copy.h"

namespace tera::test {
namespace {

constexpr DType reduced_dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64};
constexpr Reduce all_reductions[] = {Reduce::sum, Reduce::mean, Reduce::max};

// Element i of the inputs of all ranks, reduced.
Values reduced_all(const Comm& comm, std::int64_t n, DType dtype, Reduce how, std::uint64_t seed) {
  std::vector<Values> all;
  for (int r = 0; r < comm.size(); ++r) all.push_back(input_of_rank(r, n, dtype, seed));
  Values out(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::vector<double> column;
    for (const Values& values : all) column.push_back(values[i]);
    out[i] = reduced(column, dtype, how);
  }
  return out;
}

// Half a unit in the last place of 1.
double rounding(DType dtype) {
  switch (dtype) {
    case DType::bf16: return 0x1p-9;
    case DType::f16: return 0x1p-12;
    case DType::f32: return 0x1p-24;
    case DType::f64: return 0x1p-53;
    default: return 0;
  }
}

// Compares with elements [begin, begin + got.size()) of the inputs of all ranks, n each, reduced: to the bit, or within
// the rounding of any order of ranks.
void expect_reduced(const CommSubject& s, const Values& got, std::int64_t n, std::int64_t begin, DType dtype,
                    Reduce how, std::uint64_t seed) {
  const Values all = reduced_all(s.comm, n, dtype, how, seed);
  const Values expected(all.begin() + begin, all.begin() + begin + std::ssize(got));
  if (s.rank_order || how == Reduce::max || rounding(dtype) == 0) {
    EXPECT_EQ(got, expected);
    return;
  }
  Values magnitude(got.size());
  for (int r = 0; r < s.comm.size(); ++r) {
    const Values values = input_of_rank(r, n, dtype, seed);
    for (std::size_t i = 0; i < got.size(); ++i) magnitude[i] += std::abs(values[static_cast<std::size_t>(begin) + i]);
  }
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], 2 * (s.comm.size() + 1) * rounding(dtype) * magnitude[i]) << "element " << i;
}

Values part(const Values& values, std::int64_t begin, std::int64_t end) {
  return {values.begin() + begin, values.begin() + end};
}

void append(Values& values, const Values& more) { values.insert(values.end(), more.begin(), more.end()); }

void check_all_reduce(const CommSubject& s, CommTensors& tensors, std::int64_t n, DType dtype, Reduce how) {
  SCOPED_TRACE(
      fmt::format("all_reduce {} {} x {} on {} of {}", name_of(how), name_of(dtype), n, s.comm.rank(), s.comm.size()));
  const Tensor x = tensors.make(shape(n), dtype, input_of_rank(s.comm.rank(), n, dtype, 1));
  s.ops.finish(s.comm.all_reduce(x, how, s.ops.record()));
  expect_reduced(s, tensors.read(x), n, 0, dtype, how, 1);
  tensors.clear();
}

void check_reduce_scatter(const CommSubject& s, CommTensors& tensors, const Shape& part_shape, DType dtype, Reduce how,
                          bool in_place) {
  SCOPED_TRACE(fmt::format("reduce_scatter {} {} {} in place {} on {} of {}", name_of(how), name_of(dtype),
                           to_string(part_shape), in_place, s.comm.rank(), s.comm.size()));
  const std::int64_t n = count(part_shape), rows = part_shape[0], me = s.comm.rank(), ranks = s.comm.size();
  Shape all = part_shape;
  all[0] *= ranks;
  const Values mine = input_of_rank(s.comm.rank(), n * ranks, dtype, 2);
  const Tensor full = tensors.make(all, dtype, mine);
  const Tensor shard = in_place ? full.rows(me * rows, (me + 1) * rows) : tensors.garbage(part_shape, dtype);
  s.ops.finish(s.comm.reduce_scatter(full, shard, how, s.ops.record()));
  const Values got = tensors.read(shard);
  expect_reduced(s, got, n * ranks, me * n, dtype, how, 2);
  Values rest = mine;  // no other element may change
  if (in_place) std::copy(got.begin(), got.end(), rest.begin() + me * n);
  EXPECT_EQ(tensors.read(full), rest);
  tensors.clear();
}

void check_all_gather(const CommSubject& s, CommTensors& tensors, const Shape& part_shape, DType dtype, bool in_place) {
  SCOPED_TRACE(fmt::format("all_gather {} {} in place {} on {} of {}", name_of(dtype), to_string(part_shape), in_place,
                           s.comm.rank(), s.comm.size()));
  const std::int64_t n = count(part_shape), rows = part_shape[0], me = s.comm.rank();
  Shape all = part_shape;
  all[0] *= s.comm.size();
  const Tensor full = tensors.garbage(all, dtype);
  const Values mine = input_of_rank(s.comm.rank(), n, dtype, 3);
  const Tensor shard = in_place ? full.rows(me * rows, (me + 1) * rows) : tensors.garbage(part_shape, dtype);
  tensors.write(shard, mine);
  s.ops.finish(s.comm.all_gather(shard, full, s.ops.record()));
  Values expected;
  for (int r = 0; r < s.comm.size(); ++r) append(expected, input_of_rank(r, n, dtype, 3));
  EXPECT_EQ(tensors.read(full), expected);
  EXPECT_EQ(tensors.read(shard), mine);
  tensors.clear();
}

// Rows from one rank to another: uneven numbers, none for some pairs.
std::int64_t rows_between(int from, int to) { return (from * 3 + to * 5 + 1) % 4; }

void check_all_to_all(const CommSubject& s, CommTensors& tensors, std::int64_t width, DType dtype) {
  SCOPED_TRACE(fmt::format("all_to_all {} width {} on {} of {}", name_of(dtype), width, s.comm.rank(), s.comm.size()));
  const int me = s.comm.rank(), ranks = s.comm.size();
  const auto rows_to = [&](int from) {
    std::vector<std::int64_t> rows;
    for (int to = 0; to < ranks; ++to) rows.push_back(rows_between(from, to));
    return rows;
  };
  const auto total = [](const std::vector<std::int64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), 0L);
  };
  const std::vector<std::int64_t> in_rows = rows_to(me);
  std::vector<std::int64_t> out_rows;
  Values expected;
  for (int from = 0; from < ranks; ++from) {
    const std::vector<std::int64_t> theirs = rows_to(from);
    const std::int64_t before = std::accumulate(theirs.begin(), theirs.begin() + me, 0L);
    const Values all = input_of_rank(from, total(theirs) * width, dtype, 4);
    append(expected, part(all, before * width, (before + rows_between(from, me)) * width));
    out_rows.push_back(rows_between(from, me));
  }
  const std::int64_t spare = 2;  // capacity that is not used
  const Tensor in =
      tensors.make(shape(total(in_rows), width), dtype, input_of_rank(me, total(in_rows) * width, dtype, 4));
  const Tensor out = tensors.garbage(shape(total(out_rows) + spare, width), dtype);
  s.ops.finish(s.comm.all_to_all(in, out, in_rows, out_rows, s.ops.record()));
  append(expected, Values(static_cast<std::size_t>(spare * width), 77));
  EXPECT_EQ(tensors.read(out), expected);
  tensors.clear();
}

void check_broadcast(const CommSubject& s, CommTensors& tensors, std::int64_t n, DType dtype, int root) {
  SCOPED_TRACE(fmt::format("broadcast {} x {} from {} on {}", name_of(dtype), n, root, s.comm.rank()));
  const Tensor x = tensors.make(shape(n), dtype, input_of_rank(s.comm.rank(), n, dtype, 5));
  s.ops.finish(s.comm.broadcast(x, root, s.ops.record()));
  EXPECT_EQ(tensors.read(x), input_of_rank(root, n, dtype, 5));
  tensors.clear();
}

// Finishing the call copies the tensor's values: a reader that does not wait sees garbage.
struct LateValues final : Timeline {
  LateValues(CommTensors& all, const Tensor& x, Values late) : tensors(all), tensor(x), values(std::move(late)) {}
  void finish(std::uint64_t id) override {
    EXPECT_EQ(id, 7u);
    if (finished++ == 0) tensors.write(tensor, values);
  }
  CommTensors& tensors;
  Tensor tensor;
  Values values;
  int finished = 0;
};

}  // namespace

void check_reductions(const CommSubject& s) {
  CommTensors tensors(s);
  for (DType dtype : reduced_dtypes)
    for (Reduce how : all_reductions) {
      if (!can_combine(dtype, how)) continue;
      for (std::int64_t n : {0, 1, 2, 7, 64, 65, 200, 1003}) check_all_reduce(s, tensors, n, dtype, how);
      for (const Shape& part_shape : {shape(0, 3), shape(1, 1), shape(5, 3), shape(2, 3, 7), shape(130)})
        for (bool in_place : {false, true}) check_reduce_scatter(s, tensors, part_shape, dtype, how, in_place);
    }
  check_all_reduce(s, tensors, 50021, DType::f32, Reduce::sum);  // several tasks of a rank
}

void check_movements(const CommSubject& s) {
  CommTensors tensors(s);
  for (DType dtype : all_dtypes) {
    for (const Shape& part_shape : {shape(0, 4), shape(1), shape(3, 5), shape(4, 2, 9)})
      for (bool in_place : {false, true}) check_all_gather(s, tensors, part_shape, dtype, in_place);
    for (std::int64_t width : {1, 6}) check_all_to_all(s, tensors, width, dtype);
    for (int root = 0; root < s.comm.size(); ++root)
      for (std::int64_t n : {0, 1, 33}) check_broadcast(s, tensors, n, dtype, root);
  }
}

void check_exchanges(const CommSubject& s) {
  CommTensors tensors(s);
  const int me = s.comm.rank(), ranks = s.comm.size();
  const int next = (me + 1) % ranks, before = (me + ranks - 1) % ranks;
  SCOPED_TRACE(fmt::format("exchange on {} of {}", me, ranks));
  for (DType dtype :
       all_dtypes) {  // rings in both directions, two messages to each side; the order within a pair counts
    const std::int64_t n = 23;
    const Tensor to_next[] = {tensors.make(shape(n), dtype, input_of_rank(me, n, dtype, 6)),
                              tensors.make(shape(2, 3), dtype, input_of_rank(me, 6, dtype, 7))};
    const Tensor to_before = tensors.make(shape(n), dtype, input_of_rank(me, n, dtype, 8));
    const Tensor from_before[] = {tensors.garbage(shape(n), dtype), tensors.garbage(shape(2, 3), dtype)};
    const Tensor from_next = tensors.garbage(shape(n), dtype);
    const Transfer transfers[] = {{to_next[0], next, true},
                                  {from_before[0], before, false},
                                  {to_next[1], next, true},
                                  {from_before[1], before, false},
                                  {to_before, before, true},
                                  {from_next, next, false},
                                  {tensors.garbage(shape(0), dtype), next, true},
                                  {tensors.garbage(shape(0), dtype), before, false}};
    // On two ranks the next and the previous rank are one peer: the third message received is the third it sent.
    const Ticket done = s.comm.exchange(transfers, s.ops.record());
    s.ops.finish(done);
    EXPECT_EQ(tensors.read(from_before[0]), input_of_rank(before, n, dtype, 6));
    EXPECT_EQ(tensors.read(from_before[1]), input_of_rank(before, 6, dtype, 7));
    EXPECT_EQ(tensors.read(from_next), input_of_rank(next, n, dtype, 8));
    EXPECT_EQ(tensors.read(to_before), input_of_rank(me, n, dtype, 8));
    tensors.clear();
  }
  if (ranks == 1) return;
  // A chain in which only neighbours call, and in which the last exchange is finished before the first.
  const Tensor out = tensors.make(shape(9), DType::f32, input_of_rank(me, 9, DType::f32, 9));
  const Tensor in = tensors.garbage(shape(9), DType::f32);
  const Transfer send{out, next, true}, receive{in, before, false};
  Ticket sent, received;
  if (me + 1 < ranks) sent = s.comm.exchange({&send, 1}, s.ops.record());
  if (me > 0) received = s.comm.exchange({&receive, 1}, s.ops.record());
  s.ops.finish(received);
  s.ops.finish(sent);
  EXPECT_EQ(tensors.read(in), me > 0 ? input_of_rank(before, 9, DType::f32, 9) : Values(9, 77));
  s.comm.barrier();
}

void check_tickets(const CommSubject& s) {
  CommTensors tensors(s);
  const int me = s.comm.rank(), ranks = s.comm.size();
  const Values mine = input_of_rank(me, 40, DType::f32, 10);
  const auto late_tensor = [&](const auto& call, const auto& check) {
    const Tensor x = tensors.garbage(shape(40), DType::f32);
    LateValues late(tensors, x, mine);
    const Ticket done = call(x, Ticket{7, &late});
    s.ops.wait(done);  // after this, the queue sees it
    check(x);
    s.ops.finish(s.ops.record());
    EXPECT_EQ(late.finished > 0, true);
    s.comm.barrier();  // late must outlive the others' use of it
  };
  late_tensor([&](const Tensor& x, Ticket after) { return s.comm.all_reduce(x, Reduce::sum, after); },
              [&](const Tensor& x) { expect_reduced(s, tensors.read(x), 40, 0, DType::f32, Reduce::sum, 10); });
  const Tensor full = tensors.garbage(shape(40 * ranks), DType::f32);
  late_tensor([&](const Tensor& x, Ticket after) { return s.comm.all_gather(x, full, after); },
              [&](const Tensor&) {
                Values all;
                for (int r = 0; r < ranks; ++r) append(all, input_of_rank(r, 40, DType::f32, 10));
                EXPECT_EQ(tensors.read(full), all);
              });
  const Tensor got = tensors.garbage(shape(40), DType::f32);
  late_tensor(
      [&](const Tensor& x, Ticket after) {
        const Transfer both[] = {{x, (me + 1) % ranks, true}, {got, (me + ranks - 1) % ranks, false}};
        return s.comm.exchange(both, after);
      },
      [&](const Tensor&) {
        EXPECT_EQ(tensors.read(got), input_of_rank((me + ranks - 1) % ranks, 40, DType::f32, 10));
      });
}

namespace {

// The members of a color by a plain search; each says which world rank it has, and all must know of all.
void check_group(const CommSubject& s, const std::vector<int>& color_of, const std::vector<int>& key_of) {
  const int me = s.comm.rank();
  const auto at = [](const std::vector<int>& v, int i) { return v[static_cast<std::size_t>(i)]; };
  std::vector<int> members;
  for (int r = 0; r < s.comm.size(); ++r)
    if (at(color_of, r) == at(color_of, me)) members.push_back(r);
  for (std::size_t i = 0; i < members.size(); ++i)  // by key, then by rank
    for (std::size_t j = i + 1; j < members.size(); ++j)
      if (at(key_of, members[j]) < at(key_of, members[i]) ||
          (at(key_of, members[j]) == at(key_of, members[i]) && members[j] < members[i]))
        std::swap(members[i], members[j]);
  const auto group = s.comm.split(at(color_of, me), at(key_of, me), "part");
  ASSERT_EQ(group->size(), static_cast<int>(members.size()));
  EXPECT_EQ(members[static_cast<std::size_t>(group->rank())], me);
  EXPECT_EQ(group->name(), "part");
  CommTensors tensors(s, 1 << 16);
  const Tensor one = tensors.make(shape(1), DType::i32, {static_cast<double>(me)});
  const Tensor all = tensors.garbage(shape(group->size()), DType::i32);
  for (int round = 0; round < 20; ++round) s.ops.finish(group->all_gather(one, all, s.ops.record()));
  EXPECT_EQ(tensors.read(all), Values(members.begin(), members.end()));
  // Groups of different sizes do different things at the same time.
  const CommSubject inside{*group, s.ops, s.device, s.rank_order};
  for (int round = 0; round < 1 + at(color_of, me) % 3; ++round) {
    CommTensors more(s, 1 << 20);
    check_all_reduce(inside, more, 100, DType::bf16, Reduce::mean);
    check_all_to_all(inside, more, 3, DType::f32);
  }
}

}  // namespace

void check_splits(const CommSubject& s) {
  const int ranks = s.comm.size();
  const auto from = [&](auto f) {
    std::vector<int> values;
    for (int r = 0; r < ranks; ++r) values.push_back(f(r));
    return values;
  };
  const auto zero = from([](int) { return 0; });
  check_group(s, zero, zero);                                                            // all, in order
  check_group(s, zero, from([](int r) { return -r; }));                                  // all, in reverse order
  check_group(s, from([](int r) { return r % 2; }), zero);                               // odd and even
  check_group(s, from([](int r) { return r / 2; }), from([](int r) { return r % 2; }));  // pairs
  check_group(s, from([](int r) { return r == 0 ? -5 : 9; }), zero);                     // one and the rest
  check_group(s, from([](int r) { return r; }), zero);                                   // each alone
  const auto half = s.comm.split(s.comm.rank() % 2, 0, "half");                          // groups of a group
  check_group({*half, s.ops, s.device, s.rank_order}, std::vector<int>{0, 1, 0, 1, 1, 0, 0, 0}, std::vector<int>(8, 0));
}

void check_small_calls(const CommSubject& s) {
  CommTensors tensors(s, 1 << 16);
  const int me = s.comm.rank(), ranks = s.comm.size();
  const Tensor x = tensors.garbage(shape(3), DType::i64), y = tensors.garbage(shape(3), DType::i64);
  const Tensor full = tensors.garbage(shape(3 * ranks), DType::i64);
  for (int round = 0; round < s.small_rounds; ++round) {
    s.ops(FillArgs{.out = x, .value = static_cast<double>(round * ranks + me)});
    s.ops.wait(s.comm.all_gather(x, full, s.ops.record()));
    s.ops.wait(
        s.comm.reduce_scatter(full, y, Reduce::sum, s.ops.record()));  // the number of ranks times this rank's values
    s.ops.wait(s.comm.all_reduce(y, Reduce::sum, s.ops.record()));
    const Transfer ring[] = {{y, (me + 1) % ranks, true}, {x, (me + ranks - 1) % ranks, false}};
    s.ops.wait(s.comm.exchange(ring, s.ops.record()));
    s.ops.wait(s.comm.broadcast(x, round % ranks, s.ops.record()));
    double sum = 0;
    for (int r = 0; r < ranks; ++r) sum += round * ranks + r;
    ASSERT_EQ(tensors.read(x), Values(3, ranks * sum)) << "round " << round << " on rank " << me;
  }
}

// Code that unwinds after a fault may still need the other ranks. The group ends as any other: it waits for transfers
// in flight.
void check_unwinding(const CommSubject& s) {
  struct Cleaning {
    ~Cleaning() {
      const auto group = subject.comm.split(0, 0, "cleaning");
      group->all_reduce(x, Reduce::sum, subject.ops.record());
    }
    const CommSubject& subject;
    const Tensor& x;
  };
  CommTensors tensors(s, 4 << 20);
  const std::int64_t n = 1 << 18;
  const int me = s.comm.rank(), ranks = s.comm.size();
  const Tensor x = tensors.make(shape(n), DType::f32, Values(n, me + 1));
  try {
    const Cleaning cleaning{s, x};
    throw Error("caught further out");
  } catch (const Error&) {
  }
  EXPECT_EQ(tensors.read(x), Values(n, ranks * (ranks + 1) / 2)) << "on rank " << me;
  s.ops.finish(s.comm.all_reduce(x, Reduce::max, s.ops.record()));  // s.comm still works
}

void check_rejected(const CommSubject& s) {
  CommTensors tensors(s, 1 << 16);
  const int ranks = s.comm.size();
  const Tensor x = tensors.garbage(shape(2, 6), DType::f32), bytes = tensors.garbage(shape(4), DType::u8);
  const Tensor ints = tensors.garbage(shape(4), DType::i32);
  const std::vector<std::int64_t> none(static_cast<std::size_t>(ranks), 0), many(static_cast<std::size_t>(ranks), 9);
  const auto rejected = [&](const auto& call, std::string_view words) {
    EXPECT_TRUE(contains(message_of<Error>(call), words));
  };
  rejected([&] { s.comm.all_reduce(x.slice(1, 0, 2), Reduce::sum); }, "all_reduce: inout is f32[2,2] (strided)");
  rejected([&] { s.comm.all_reduce(bytes, Reduce::sum); }, "u8 is not reduced");
  rejected([&] { s.comm.all_reduce(ints, Reduce::mean); }, "integers have no mean");
  rejected([&] { s.comm.all_gather(x, bytes); }, "all_gather: full is u8[4], expected f32");
  rejected([&] { s.comm.reduce_scatter(x, x.rows(0, 0), Reduce::sum); }, "reduce_scatter: full is f32[2,6]");
  rejected([&] { s.comm.all_to_all(x, x, many, none); }, "all_to_all: in is f32[2,6]");
  rejected([&] { s.comm.all_to_all(x, ints, none, none); }, "their rows must be alike");
  rejected([&] { s.comm.broadcast(x, ranks); }, "broadcast from rank");
  const Transfer far{x, ranks, true};
  rejected([&] { s.comm.exchange({&far, 1}); }, "exchange with rank");
}

}  // namespace tera::test
