#include "tera/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tera/base/error.h"
#include "tera/tensor/arena.h"

namespace tera {
namespace {

// What a pattern of a small binary float means, from the definition: sign, exponent, fraction.
double decode(std::uint32_t bits, int exponent_bits, int fraction_bits) {
  const std::uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const std::uint32_t exponent = bits >> fraction_bits & ((1u << exponent_bits) - 1);
  const double sign = bits >> (exponent_bits + fraction_bits) & 1u ? -1 : 1;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1u << exponent_bits) - 1)
    return fraction ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1u << fraction_bits), static_cast<int>(exponent) - bias - fraction_bits);
}

// The pattern nearest to x by comparing with its neighbours in fp64; ties go to the even one. x is finite, not
// negative.
std::uint32_t nearest(double x, int exponent_bits, int fraction_bits) {
  const std::uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;
  std::uint32_t low = 0, high = infinity;  // largest pattern with value <= x
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (decode(middle, exponent_bits, fraction_bits) <= x ? low : high) = middle;
  }
  const double below = decode(low, exponent_bits, fraction_bits);
  // Rounding treats infinity as the number that would follow the largest one.
  const double step = low + 1 == infinity ? below - decode(low - 1, exponent_bits, fraction_bits)
                                          : decode(low + 1, exponent_bits, fraction_bits) - below;
  if (x - below < step / 2) return low;
  if (x - below > step / 2) return low + 1;
  return low % 2 == 0 ? low : low + 1;
}

void expect_same(float got, double wanted, std::uint32_t bits) {
  if (std::isnan(wanted)) {
    EXPECT_TRUE(std::isnan(got)) << bits;
  } else {
    EXPECT_EQ(static_cast<double>(got), wanted) << bits;
    EXPECT_EQ(std::signbit(got), std::signbit(wanted)) << bits;
  }
}

TEST(DType, EveryPatternDecodes) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    expect_same(to_float(BFloat16{static_cast<std::uint16_t>(bits)}), decode(bits, 8, 7), bits);
    expect_same(to_float(Float16{static_cast<std::uint16_t>(bits)}), decode(bits, 5, 10), bits);
  }
}

TEST(DType, EveryPatternSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto b = static_cast<std::uint16_t>(bits);
    if (!std::isnan(decode(bits, 8, 7)))
      EXPECT_EQ(to_bf16(to_float(BFloat16{b})).bits, b);
    else
      EXPECT_TRUE(std::isnan(to_float(to_bf16(to_float(BFloat16{b})))));
    if (!std::isnan(decode(bits, 5, 10)))
      EXPECT_EQ(to_f16(to_float(Float16{b})).bits, b);
    else
      EXPECT_TRUE(std::isnan(to_float(to_f16(to_float(Float16{b})))));
  }
}

TEST(DType, RoundsToNearestEven) {
  // Around every value of both formats: exactly on the tie to the next one, and one fp32 step to each side.
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    for (const bool half : {false, true}) {
      const int exponent_bits = half ? 5 : 8, fraction_bits = half ? 10 : 7;
      const double here = decode(bits, exponent_bits, fraction_bits),
                   next = decode(bits + 1, exponent_bits, fraction_bits);
      const auto tie = static_cast<float>(std::isinf(next) ? 65520.0 : (here + next) / 2);
      for (float x : {std::nextafter(tie, 0.0f), tie, std::nextafter(tie, std::numeric_limits<float>::infinity())}) {
        const std::uint32_t wanted = nearest(static_cast<double>(x), exponent_bits, fraction_bits);
        EXPECT_EQ(half ? to_f16(x).bits : to_bf16(x).bits, wanted) << x;
        EXPECT_EQ(half ? to_f16(-x).bits : to_bf16(-x).bits, wanted | 0x8000u) << x;
      }
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_f16(infinity).bits, 0x7c00);
  EXPECT_EQ(to_f16(1e30f).bits, 0x7c00);
  EXPECT_EQ(to_bf16(-infinity).bits, 0xff80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_f16(1e-30f).bits, 0);
}

TEST(Shape, CountsAndRefusesNonsense) {
  EXPECT_EQ(count(shape(3, 4, 5)), 60);
  EXPECT_EQ(count(shape(3, 0)), 0);
  EXPECT_EQ(count(Shape{}), 0);
  EXPECT_EQ(to_string(shape(2, 7)), "[2,7]");
  EXPECT_EQ(dense_stride(shape(2, 3, 4)), shape(12, 4, 1));
  EXPECT_THROW(count(shape(1LL << 40, 1LL << 40)), Error);
  EXPECT_THROW(count(shape(2, -1)), Error);
}

TEST(Tensor, Views) {
  float memory[24];
  for (int i = 0; i < 24; ++i) memory[i] = static_cast<float>(i);
  const Tensor t = make_tensor(memory, shape(4, 6), DType::f32);
  EXPECT_TRUE(t.dense());
  EXPECT_EQ(t.bytes(), 96u);

  const Tensor rows = t.rows(1, 3);
  EXPECT_EQ(rows.as<float>()[0], 6.0f);
  EXPECT_TRUE(rows.dense());
  EXPECT_EQ(rows.shape, shape(2, 6));

  const Tensor columns = t.slice(1, 2, 5);
  EXPECT_EQ(columns.as<float>()[0], 2.0f);
  EXPECT_EQ(columns.as<float>()[columns.stride[0]], 8.0f);
  EXPECT_FALSE(columns.dense());
  EXPECT_EQ(to_string(columns), "f32[4,3] (strided)");

  const Tensor heads = t.slice(1, 0, 4).split_last(2, 2);
  EXPECT_EQ(heads.shape, shape(4, 2, 2));
  EXPECT_EQ(heads.stride, shape(6, 2, 1));

  const Tensor flat = t.view(shape(24));
  EXPECT_EQ(flat.as<float>()[23], 23.0f);
}

TEST(Tensor, RefusesWrongViews) {
  float memory[24] = {};
  const Tensor t = make_tensor(memory, shape(4, 6), DType::f32);
  EXPECT_THROW(t.as<double>(), Error);
  EXPECT_THROW(t.rows(2, 5), Error);
  EXPECT_THROW(t.rows(3, 2), Error);
  EXPECT_THROW(t.slice(2, 0, 1), Error);
  EXPECT_THROW(t.slice(1, -1, 1), Error);
  EXPECT_THROW(t.view(shape(25)), Error);
  EXPECT_THROW(t.slice(1, 0, 3).view(shape(12)), Error);
  EXPECT_THROW(t.split_last(4, 2), Error);
}

// A step as a block runs it: some memory is kept, some is scratch.
void run_step(Arena& arena) {
  arena.take(shape(10), DType::f32, "kept");
  {
    const ScratchScope scope(arena);
    arena.take(shape(1000), DType::u8, "scratch");
    arena.take(shape(3), DType::f64, "scratch");
  }
  arena.take(shape(300), DType::u8, "late");
}

TEST(Arena, TheRealRunNeedsExactlyThePlan) {
  Arena plan = Arena::measuring();
  run_step(plan);
  EXPECT_EQ(plan.peak(), 256u + 1024u + 256u);
  EXPECT_EQ(plan.mark(), 256u + 512u);
  EXPECT_EQ(plan.at_peak().at("kept"), 256u);
  EXPECT_EQ(plan.at_peak().at("scratch"), 1280u);

  alignas(Arena::alignment) std::byte slab[1536];
  Arena real({slab, plan.peak()}, "step");
  run_step(real);
  EXPECT_EQ(real.peak(), plan.peak());
  Arena small({slab, plan.peak() - 1}, "step");
  EXPECT_THROW(run_step(small), Error);
}

TEST(Arena, HandsOutTheSameOffsetsInPlanAndRun) {
  Arena plan = Arena::measuring();
  alignas(Arena::alignment) std::byte slab[2048];
  Arena real({slab, sizeof slab}, "slab");
  const auto distance = [](Arena& arena) {
    const Tensor a = arena.take(shape(65), DType::f32, "a"), b = arena.take(shape(1), DType::i32, "b");
    return static_cast<std::byte*>(b.data) - static_cast<std::byte*>(a.data);
  };
  EXPECT_EQ(distance(plan), 512);
  EXPECT_EQ(distance(real), 512);
}

TEST(Arena, SaysWhatDidNotFit) {
  alignas(Arena::alignment) std::byte slab[256];
  Arena arena({slab, sizeof slab}, "activations");
  try {
    arena.take(shape(2, 100), DType::f32, "mlp.up");
    FAIL() << "took more than there is";
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const char* word : {"mlp.up", "f32[2,100]", "activations", "256"})
      EXPECT_NE(message.find(word), std::string::npos) << message;
  }
  Arena none({}, "replay");  // planned to need nothing: not the same as being planned
  EXPECT_THROW(none.take(shape(1), DType::u8, "late"), Error);
  EXPECT_THROW(arena.rewind(1000), Error);
  EXPECT_THROW(arena.take(shape(1LL << 62), DType::f64, "huge"), Error);
}

// What a plan needs follows from sizes that the user gave; sums of it must not wrap and look small.
TEST(Arena, PlansNoMoreThanCanBeAddressed) {
  Arena plan = Arena::measuring();
  plan.take(shape(1LL << 60), DType::f32, "first");  // half of what signed distances reach
  EXPECT_THROW(plan.take(shape(1LL << 60), DType::f32, "second"), UserError);
  EXPECT_THROW(plan.take(shape(1LL << 62), DType::f64, "huge"), UserError);
  EXPECT_THROW(plan.take(shape(std::numeric_limits<std::int64_t>::max()), DType::f16, "to the last byte"), UserError);
  EXPECT_EQ(plan.peak(), std::size_t{1} << 62) << "what was refused was not taken";
}

}  // namespace
}  // namespace tera
