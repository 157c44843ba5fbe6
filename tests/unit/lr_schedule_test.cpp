#include "tera/optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tera/base/error.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

LrSchedule schedule(LrDecayStyle style) {
  return {.style = style, .init_lr = .01, .max_lr = .1, .min_lr = .001, .warmup_samples = 100, .decay_samples = 1000};
}

void expect_rate(const LrSchedule& s, std::int64_t samples, double wanted) {
  EXPECT_NEAR(learning_rate(s, samples), wanted, 1e-12) << "after " << samples << " samples";
}

TEST(LrSchedule, EveryStyleWarmsUpLinearly) {
  for (const auto& [style, name] : EnumNames<LrDecayStyle>::values) {
    SCOPED_TRACE(name);
    LrSchedule s = schedule(style);
    s.wsd_decay_samples = 200;
    expect_rate(s, 0, .01);
    expect_rate(s, 50, .055);
    expect_rate(s, 100, .1);
  }
}

TEST(LrSchedule, WithoutWarmUpTheFirstStepHasTheFullRate) {
  LrSchedule s = schedule(LrDecayStyle::linear);
  s.warmup_samples = 0;
  expect_rate(s, 0, .1);
  expect_rate(s, 500, .0505);
}

TEST(LrSchedule, Constant) {
  const LrSchedule s = schedule(LrDecayStyle::constant);
  expect_rate(s, 101, .1);
  expect_rate(s, 5000, .1);
}

TEST(LrSchedule, Linear) {
  const LrSchedule s = schedule(LrDecayStyle::linear);
  expect_rate(s, 500, .056);
  expect_rate(s, 550, .0505);
  expect_rate(s, 1000, .001);
  expect_rate(s, 1001, .001);
}

TEST(LrSchedule, Cosine) {
  const LrSchedule s = schedule(LrDecayStyle::cosine);
  expect_rate(s, 550, .0505);              // cos(pi/2) = 0
  expect_rate(s, 400, .001 + .099 * .75);  // cos(pi/3) = 1/2
  expect_rate(s, 700, .001 + .099 * .25);  // cos(2 pi/3) = -1/2
  expect_rate(s, 1000, .001);
  expect_rate(s, 2000, .001);
}

TEST(LrSchedule, InverseSquareRoot) {
  LrSchedule s = schedule(LrDecayStyle::inverse_square_root);
  expect_rate(s, 400, .05);  // sqrt(100/400)
  expect_rate(s, 900, .1 / 3);
  expect_rate(s, 1001, .001);  // past the decay
  s.min_lr = .04;
  expect_rate(s, 900, .04);  // the floor
  s.warmup_samples = 0;      // counts as one
  expect_rate(s, 0, .1);
  expect_rate(s, 4, .05);
}

TEST(LrSchedule, WsdIsFlatThenFallsInFourShapes) {
  LrSchedule s = schedule(LrDecayStyle::wsd);
  s.wsd_decay_samples = 200;
  for (const auto& [style, name] : EnumNames<WsdDecayStyle>::values) {
    SCOPED_TRACE(name);
    s.wsd_style = style;
    expect_rate(s, 101, .1);
    expect_rate(s, 800, .1);
    expect_rate(s, 1000, .001);
    expect_rate(s, 1001, .001);
  }
  s.wsd_style = WsdDecayStyle::linear;
  expect_rate(s, 850, .001 + .099 * .75);
  s.wsd_style = WsdDecayStyle::cosine;
  expect_rate(s, 900, .0505);
  s.wsd_style = WsdDecayStyle::minus_sqrt;
  expect_rate(s, 850, .0505);  // 1 - sqrt(1/4)
  s.wsd_style = WsdDecayStyle::exponential;
  expect_rate(s, 900, .001 + .099 * (std::sqrt(2.0) - 1));  // 2 / sqrt(2) - 1
}

TEST(LrSchedule, NamesAreMegatrons) {
  EXPECT_EQ(parse_enum<LrDecayStyle>("inverse-square-root"), LrDecayStyle::inverse_square_root);
  EXPECT_EQ(parse_enum<LrDecayStyle>("WSD"), LrDecayStyle::wsd);
}

TEST(LrSchedule, MistakesNameTheKey) {
  const auto complaint = [](void (*spoil)(LrSchedule&)) {
    LrSchedule s = schedule(LrDecayStyle::wsd);
    s.wsd_decay_samples = 200;
    s.check();
    spoil(s);
    return message_of<UserError>([&] { s.check(); });
  };
  EXPECT_TRUE(contains(complaint([](LrSchedule& s) { s.max_lr = std::nan(""); }), "optimizer.lr"));
  EXPECT_TRUE(contains(complaint([](LrSchedule& s) { s.min_lr = -1; }), "optimizer.min_lr"));
  EXPECT_TRUE(contains(complaint([](LrSchedule& s) { s.min_lr = 1; }), "optimizer.min_lr (1)"));
  EXPECT_TRUE(contains(complaint([](LrSchedule& s) { s.init_lr = 1; }), "lr_warmup_init"));
  EXPECT_TRUE(contains(complaint([](LrSchedule& s) { s.warmup_samples = 1000; }), "lr_warmup_iters"));
  EXPECT_TRUE(contains(complaint([](LrSchedule& s) { s.wsd_decay_samples = 0; }), "lr_wsd_decay_iters"));
  EXPECT_TRUE(contains(complaint([](LrSchedule& s) { s.wsd_decay_samples = 1001; }), "lr_wsd_decay_iters"));
}

}  // namespace
}  // namespace tera::test
