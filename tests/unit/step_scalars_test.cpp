// The board of numbers, its weights and vetoes, on one rank and on several.

#include "tera/train/step/step_scalars.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/backend/cpu/cpu_ops.h"
#include "tera/comm/world.h"
#include "tera/ops/copy.h"
#include "tera/train/step/step_feature.h"
#include "tests/support/transfer.h"

namespace tera::test {
namespace {

using When = StepScalars::When;

// A rank with memory for a board.
struct BoardRank {
  explicit BoardRank(int world_size) : ranks(world_size) {}
  void bind(StepScalars& scalars) {
    Arena measured = Arena::measuring();
    scalars.bind(measured, ranks);
    Arena arena(device.allocate(measured.peak()), "board");
    scalars.bind(arena, ranks);
    scalars.allocate_host(device);
    scalars.clear(ops);
  }
  void fill(const Tensor& tensor, double value) { ops(FillArgs{.out = tensor, .value = value}); }
  StepReading read(const StepScalars& scalars, Comm& world, When when, std::size_t slot) {
    scalars.combine(ops, world, when);
    ops.finish(scalars.begin_read(ops, when, slot));
    return scalars.reading(slot);
  }

  cpu::CpuDevice device;
  cpu::CpuOps ops{1, cpu::best_isa()};
  int ranks;
};

TEST(StepScalars, EachKindIsCombinedItsWay) {
  constexpr int ranks = 3;
  run_threads(ranks, {.timeout = std::chrono::seconds(60)}, [&](RankHandle& handle) {
    BoardRank rank(ranks);
    const auto world = handle.join(rank.ops);
    StepScalars scalars;
    const std::size_t sums = scalars.add({.name = "sums", .count = 2});
    const std::size_t worst = scalars.add({.name = "worst", .combine = Combine::max});
    const std::size_t rows = scalars.add({.name = "rows", .combine = Combine::per_rank});
    const std::size_t best = scalars.add({.name = "best", .combine = Combine::max});
    const std::size_t late = scalars.add({.name = "late", .combine = Combine::per_rank});
    const std::size_t same = scalars.add({.name = "same", .combine = Combine::same, .count = 3});
    const Tensor own = Arena(rank.device.allocate(256), "own").take(shape(3), DType::f32, "own");
    scalars.attach(same, own);
    rank.bind(scalars);
    upload(rank.ops, std::vector<float>{1.5f, -2, 0.1f}, own);

    const int r = handle.rank();
    scalars.set(rank.ops, sums, std::vector{1.0 + r, 0.25});
    rank.fill(scalars.slot(worst), r == 1 ? 7.5 : -1);
    rank.fill(scalars.slot(best), -3 - r);
    rank.fill(scalars.slot(rows), 10 * r);
    rank.fill(scalars.slot(late), 5 + r);
    const StepReading reading = rank.read(scalars, *world, When::step, 1);
    EXPECT_EQ(reading.number("sums"), 6);
    EXPECT_EQ(reading.number_at("sums", 1), 0.75);
    EXPECT_EQ(reading.number("worst"), 7.5);
    EXPECT_EQ(reading.number("best"), -3);
    ASSERT_EQ(reading.count("rows"), 3u);
    for (std::size_t other = 0; other < 3; ++other) {
      EXPECT_EQ(reading.number_at("rows", other), 10.0 * static_cast<double>(other));
      EXPECT_EQ(reading.number_at("late", other), 5.0 + static_cast<double>(other));
    }
    EXPECT_EQ(reading.number_at("same", 2), static_cast<double>(0.1f)) << "a float, as it is";
    const std::span<const float> floats = reading.values<float>("same");
    EXPECT_EQ(std::vector<float>(floats.begin(), floats.end()), (std::vector<float>{1.5f, -2, 0.1f}));
    EXPECT_FALSE(reading.has("none"));
    EXPECT_TRUE(reading.values<double>("none").empty());
    EXPECT_THROW(reading.number("none"), Error);
    EXPECT_THROW(reading.number_at("sums", 2), Error);
    EXPECT_THROW(reading.values<float>("sums"), Error) << "of another type";
  });
}

// Evaluations combine the numbers that are declared so, wherever they are in the list, and leave the others alone.
TEST(StepScalars, EvaluationsHaveTheirOwn) {
  constexpr int ranks = 2;
  run_threads(ranks, {.timeout = std::chrono::seconds(60)}, [&](RankHandle& handle) {
    BoardRank rank(ranks);
    const auto world = handle.join(rank.ops);
    StepScalars scalars;
    const std::size_t step_only = scalars.add({.name = "step only"});
    const std::size_t both = scalars.add({.name = "both", .in_evaluation = true});
    rank.bind(scalars);
    rank.fill(scalars.slot(step_only), 5);
    rank.fill(scalars.slot(both), 2);
    EXPECT_EQ(rank.read(scalars, *world, When::evaluation, StepScalars::evaluation_reading).number("both"), 4);
    EXPECT_EQ(download<double>(rank.ops, scalars.slot(step_only)), std::vector<double>{5});
    rank.fill(scalars.slot(both), 2);
    const StepReading step = rank.read(scalars, *world, When::step, 0);
    EXPECT_EQ(step.number("step only"), 10);
    EXPECT_EQ(step.number("both"), 4);
  });
}

// Two readings are in flight: the next one changes nothing of the one before.
TEST(StepScalars, AReadingStaysUntilTheNextButOne) {
  BoardRank rank(1);
  const auto world = make_self_comm(rank.ops);
  StepScalars scalars;
  const std::size_t id = scalars.add({.name = "x"});
  rank.bind(scalars);
  EXPECT_EQ(rank.read(scalars, *world, When::step, 0).number("x"), 0) << "cleared";
  rank.fill(scalars.slot(id), 1);
  const StepReading first = rank.read(scalars, *world, When::step, 0);
  rank.fill(scalars.slot(id), 2);
  const StepReading second = rank.read(scalars, *world, When::step, 1);
  EXPECT_EQ(first.number("x"), 1);
  EXPECT_EQ(second.number("x"), 2);
}

TEST(StepScalars, RefusesWhatCannotBeRead) {
  StepScalars scalars;
  scalars.add({.name = "x"});
  EXPECT_THROW(scalars.add({.name = "x"}), Error) << "two of one name";
  EXPECT_THROW(scalars.add({.name = "none", .count = 0}), Error);
  EXPECT_THROW(scalars.add({.name = "several", .combine = Combine::per_rank, .count = 2}), Error);
  const std::size_t same = scalars.add({.name = "same", .combine = Combine::same, .count = 2});
  Arena arena = Arena::measuring();
  EXPECT_THROW(scalars.attach(same, arena.take(shape(3), DType::f32, "")), Error);
  EXPECT_THROW(scalars.attach(0, arena.take(shape(1), DType::f64, "")), Error) << "the board has its memory";
  cpu::CpuDevice device;
  EXPECT_THROW(scalars.allocate_host(device), Error) << "nothing is attached";
}

TEST(LossWeights, AreOneTensorOfAllKinds) {
  BoardRank rank(1);
  for (const bool scaled : {false, true}) {
    LossWeights weights;
    const std::int64_t one = weights.add(1), two = weights.add(2);
    Arena arena(rank.device.allocate(1024), "weights");
    weights.bind(arena, /*microbatches=*/3, scaled);
    for (std::int64_t i = 0; i < 3; ++i) {
      const auto number = static_cast<float>(i);
      weights.set(rank.ops, one, i, number);
      weights.set(rank.ops, two, i, 10 + number);
      weights.set(rank.ops, two + 1, i, 20 + number);
    }
    EXPECT_EQ(download<float>(rank.ops, weights.plain()), (std::vector<float>{0, 1, 2, 10, 11, 12, 20, 21, 22}));
    EXPECT_EQ(weights.scaled().data == weights.plain().data, !scaled);
    upload(rank.ops, std::vector<float>{0, 2, 4, 20, 22, 24, 40, 42, 44}, weights.scaled());
    EXPECT_EQ(download<float>(rank.ops, weights.weight(two + 1, 2)), std::vector<float>{44});
    EXPECT_EQ(download<float>(rank.ops, weights.weight(two, 0)), std::vector<float>{20});
  }
}

// Each rank may veto; all see it.
TEST(StepVetoes, OneRankIsEnough) {
  constexpr int ranks = 3;
  run_threads(ranks, {.timeout = std::chrono::seconds(60)}, [&](RankHandle& handle) {
    BoardRank rank(ranks);
    const auto world = handle.join(rank.ops);
    StepVetoes vetoes;
    EXPECT_FALSE(vetoes.any());
    const std::int64_t never = vetoes.add(), once = vetoes.add();
    EXPECT_TRUE(vetoes.any());
    Arena arena(rank.device.allocate(256), "vetoes");
    vetoes.bind(arena);
    ASSERT_EQ(vetoes.flags().size(), 2u);
    for (const bool veto : {true, false}) {
      vetoes.clear(rank.ops);
      if (veto && handle.rank() == 1) rank.fill(vetoes.flag(once), std::numeric_limits<double>::quiet_NaN());
      vetoes.combine(rank.ops, *world);
      EXPECT_EQ(download<float>(rank.ops, vetoes.flag(never)).front(), 0);
      EXPECT_EQ(std::isfinite(download<float>(rank.ops, vetoes.flag(once)).front()), !veto);
    }
  });
}

struct Numbered final : StepFeature {
  Numbered(int order, std::string& log) : StepFeature(order), log_(log) {}
  void describe(StepBoard& /*board*/) override { log_ += std::to_string(order()) + " "; }
  std::string& log_;
};

TEST(StepFeatures, AreInTheirOrderWhereverTheyComeFrom) {
  std::string log;
  StepFeatures::List list;
  for (const int order : {30, 10, 20}) list.push_back(std::make_unique<Numbered>(order, log));
  const StepFeatures features(std::move(list));
  EXPECT_EQ(log, "10 20 30 ");
  log.clear();
  features.each([&](const StepFeature& feature) { log += std::to_string(feature.order()) + " "; });
  EXPECT_EQ(log, "10 20 30 ");

  StepFeatures::List same;
  for (const int order : {30, 10, 30}) same.push_back(std::make_unique<Numbered>(order, log));
  EXPECT_THROW(StepFeatures{std::move(same)}, Error) << "ranks could differ in the order of two";
}

}  // namespace
}  // namespace tera::test
