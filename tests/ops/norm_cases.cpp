#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/op_test.h"

#include "tera/ops/norm.h"

namespace tera::test {
namespace {

struct NormCase {
  NormKind kind;
  DType dtype;
  Shape shape;
  std::int64_t row_gap = 0;
  double mean = 0;  // far from zero, a careless variance loses all digits
};

std::string name_of_case(const char* op, const NormCase& c) {
  return fmt::format("{} {} {}{} gap {} mean {}", op, name_of(c.kind), name_of(c.dtype), to_string(c.shape), c.row_gap,
                     c.mean);
}

std::vector<NormCase> norm_cases() {
  std::vector<NormCase> cases;
  for (NormKind kind : {NormKind::layer_norm, NormKind::rms_norm}) {
    for (DType dtype : float_dtypes) {
      for (const Shape& s : {shape(1, 1), shape(3, 7), shape(5, 64), shape(2, 133), shape(70, 33), shape(4, 3, 20)})
        cases.push_back({.kind = kind, .dtype = dtype, .shape = s});
      cases.push_back({.kind = kind, .dtype = dtype, .shape = shape(6, 40), .row_gap = 5});
      cases.push_back({.kind = kind, .dtype = dtype, .shape = shape(5, 2, 16), .row_gap = 11});
    }
    cases.push_back({.kind = kind, .dtype = DType::f32, .shape = shape(3, 300), .mean = 100});
    cases.push_back({.kind = kind, .dtype = DType::f32, .shape = shape(1100, 33)});  // several tasks
  }
  return cases;
}

constexpr float eps = 1e-5f;

struct Moments {
  double mean = 0, rstd = 0;
};
Moments moments(NormKind kind, const double* x, std::size_t width) {
  Moments m;
  double squares = 0;
  if (kind == NormKind::layer_norm)
    for (std::size_t i = 0; i < width; ++i) m.mean += x[i] / static_cast<double>(width);
  for (std::size_t i = 0; i < width; ++i) squares += (x[i] - m.mean) * (x[i] - m.mean);
  m.rstd = 1 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(eps));
  return m;
}

Shape statistics_shape(Shape s) {
  --s.rank;
  s.dim[static_cast<std::size_t>(s.rank)] = 0;
  return s;
}

OpCase forward_case(const NormCase& c) {
  OpCase op(name_of_case("norm", c));
  const std::int64_t width = c.shape.last();
  const bool layer = c.kind == NormKind::layer_norm;
  const Handle x = op.input("x", c.shape, c.dtype, normal_values(c.shape, 1, 1.5, c.mean), {.row_gap = c.row_gap});
  const Handle weight = op.input("weight", shape(width), c.dtype, normal_values(shape(width), 2, 0.3, 1));
  const Handle bias = op.input("bias", shape(width), c.dtype, normal_values(shape(width), 3, 0.3));
  // RMSNorm rounds the normalised value before the weight is applied.
  const Handle y = op.output("y", c.shape, c.dtype,
                             {.row_gap = 2 * c.row_gap, .terms = width, .rounded_inside = !layer, .inside = c.dtype});
  const Handle rstd = op.output("rstd", statistics_shape(c.shape), DType::f32, {.terms = width});
  const Handle mean = op.output("mean", statistics_shape(c.shape), DType::f32, {.terms = width});
  op.call([=](Ops& ops, const Bound& at) {
    NormArgs args{.kind = c.kind, .x = at[x], .weight = at[weight], .y = at[y], .rstd = at[rstd], .eps = eps};
    if (layer) args.bias = at[bias], args.mean = at[mean];
    ops(args);
  });
  op.reference([=](Reference& r) {
    const auto w = static_cast<std::size_t>(width);
    for (std::size_t row = 0; row < r[x].size() / w; ++row) {
      const Moments m = moments(c.kind, &r[x][row * w], w);
      r.expect(rstd, row, m.rstd, m.rstd * (1 + std::abs(m.mean) * m.rstd));
      if (layer)
        r.expect(mean, row, m.mean, std::abs(c.mean) + 6);
      else
        r.expect(mean, row, 77, 0);  // left alone
      for (std::size_t i = 0; i < w; ++i) {
        const double value = r[x][row * w + i], normed = (value - m.mean) * m.rstd, b = layer ? r[bias][i] : 0;
        const double size = (std::abs(value) + std::abs(m.mean)) * m.rstd * std::abs(r[weight][i]);
        r.expect(y, row * w + i, normed * r[weight][i] + b, 2 * size + std::abs(b));
      }
    }
  });
  return op;
}

// Rows so long that a GPU has other kernels for them: their gradients keep two packs per thread (4096 in f32, 5120
// in bf16), or need two passes (5120 in f32, 12288).
std::vector<NormCase> wide_cases() {
  std::vector<NormCase> cases;
  for (NormKind kind : {NormKind::layer_norm, NormKind::rms_norm})
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (std::int64_t width : {4096, 5120, 12288})
        cases.push_back({.kind = kind, .dtype = dtype, .shape = shape(3, width)});
      cases.push_back({.kind = kind, .dtype = dtype, .shape = shape(2, 5120), .row_gap = 8});
    }
  return cases;
}

// Sum of dy * norm(x) without bias, whose derivatives the backward op must give.
double weighted_norm(NormKind kind, const Values& x, const Values& weight, const Values& dy) {
  double total = 0;
  const std::size_t width = weight.size();
  for (std::size_t row = 0; row < x.size() / width; ++row) {
    const Moments m = moments(kind, &x[row * width], width);
    for (std::size_t i = 0; i < width; ++i)
      total += dy[row * width + i] * (x[row * width + i] - m.mean) * m.rstd * weight[i];
  }
  return total;
}

// The derivatives of weighted_norm in closed form, for rows too long for differences.
struct NormGradient {
  Values x;       // gradient of every row
  Values weight;  // summed over rows
};
NormGradient norm_gradient(NormKind kind, const Values& x, const Values& weight, const Values& dy) {
  const std::size_t width = weight.size();
  const double inverse = 1 / static_cast<double>(width);
  NormGradient gradient{Values(x.size()), Values(width)};
  for (std::size_t begin = 0; begin < x.size(); begin += width) {
    const Moments m = moments(kind, &x[begin], width);
    const auto normed = [&](std::size_t i) { return (x[begin + i] - m.mean) * m.rstd; };
    double mean_g = 0, mean_gx = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const double g = dy[begin + i] * weight[i] * inverse;
      if (kind == NormKind::layer_norm) mean_g += g;
      mean_gx += g * normed(i);
      gradient.weight[i] += dy[begin + i] * normed(i);
    }
    for (std::size_t i = 0; i < width; ++i)
      gradient.x[begin + i] = m.rstd * (dy[begin + i] * weight[i] - mean_g - normed(i) * mean_gx);
  }
  return gradient;
}

Values norm_differences(NormKind kind, const Values& x, const Values& weight, const Values& dy) {
  const std::size_t width = weight.size();
  Values all;
  for (std::size_t begin = 0; begin < x.size(); begin += width) {
    const Values x_row(&x[begin], &x[begin] + width), dy_row(&dy[begin], &dy[begin] + width);
    const auto f = [&](const Values& at) { return weighted_norm(kind, at, weight, dy_row); };
    const Values row = finite_differences(f, x_row);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

constexpr std::int64_t widest_for_differences = 1000;

enum class Fused { nothing, residual, in_place, no_weight };

OpCase backward_case(const NormCase& c, Fused fused) {
  OpCase op(name_of_case("norm_back", c) + fmt::format(" fused {}", static_cast<int>(fused)));
  const std::int64_t width = c.shape.last(), vectors = count(c.shape) / width;
  const bool layer = c.kind == NormKind::layer_norm, in_place = fused == Fused::in_place;
  const auto w = static_cast<std::size_t>(width);
  const Values raw_x = normal_values(c.shape, 1, 1.5, c.mean);
  const OpCase::Extra gap{.row_gap = c.row_gap};
  const OpCase::Extra dx_extra{.row_gap = c.row_gap, .terms = width, .rounded_inside = !layer, .inside = c.dtype};
  const OpCase::Extra sum_extra{.terms = vectors, .rounded_inside = !layer, .inside = c.dtype};
  const Handle x = op.input("x", c.shape, c.dtype, raw_x, gap);
  const Values dy_values = normal_values(c.shape, 4);
  const Handle dy = in_place ? op.output("dy", c.shape, c.dtype, dx_extra, dy_values)
                             : op.input("dy", c.shape, c.dtype, dy_values, gap);
  const Handle dx = in_place ? dy : op.output("dx", c.shape, c.dtype, dx_extra);
  const Handle weight = op.input("weight", shape(width), c.dtype, normal_values(shape(width), 2, 0.3, 1));
  const Handle residual = op.input("residual", c.shape, c.dtype, normal_values(c.shape, 5), {.row_gap = 3});
  const Handle dweight = op.output("dweight", shape(width), DType::f32, sum_extra, normal_values(shape(width), 6));
  const Handle dbias = op.output("dbias", shape(width), DType::f32, sum_extra, normal_values(shape(width), 7));
  // The statistics of the rounded x, as the forward op would have left them.
  Values rstd_values, mean_values;
  for (std::int64_t v = 0; v < vectors; ++v) {
    Values row(raw_x.begin() + v * width, raw_x.begin() + (v + 1) * width);
    for (double& value : row) value = op.stored(c.dtype, value);
    const Moments m = moments(c.kind, row.data(), w);
    rstd_values.push_back(m.rstd);
    mean_values.push_back(m.mean);
  }
  const Handle rstd = op.input("rstd", statistics_shape(c.shape), DType::f32, rstd_values);
  const Handle mean = op.input("mean", statistics_shape(c.shape), DType::f32, mean_values);
  const bool with_weight = fused != Fused::no_weight, with_residual = fused == Fused::residual || in_place;
  op.call([=](Ops& ops, const Bound& at) {
    NormBackArgs args{.kind = c.kind, .dy = at[dy], .x = at[x], .weight = at[weight], .rstd = at[rstd], .dx = at[dx]};
    if (layer) args.mean = at[mean];
    if (with_residual) args.residual = at[residual];
    if (with_weight) args.dweight = at[dweight];
    if (with_weight && layer) args.dbias = at[dbias];
    ops(args);
  });
  op.reference([=](Reference& r) {
    const bool wide = width > widest_for_differences;
    const auto by_weight = [&](const Values& at) { return weighted_norm(c.kind, r[x], at, r[dy]); };
    const NormGradient closed = wide ? norm_gradient(c.kind, r[x], r[weight], r[dy]) : NormGradient{};
    const Values gradient = wide ? closed.x : norm_differences(c.kind, r[x], r[weight], r[dy]);
    const Values dw = wide ? closed.weight : finite_differences(by_weight, r[weight]);
    Values db(w, 0.0);
    const double cancel = 1 + std::abs(c.mean);
    for (std::size_t at = 0; at < r[x].size(); ++at) {
      const double added = with_residual ? r[residual][at] : 0;
      const double size = r[rstd][at / w] * (std::abs(r[dy][at] * r[weight][at % w]) + 4) * cancel;
      r.expect(dx, at, gradient[at] + added, size + std::abs(added));
      db[at % w] += r[dy][at];
    }
    for (std::size_t i = 0; i < w; ++i) {
      double size = 1;
      for (std::size_t row = 0; row < static_cast<std::size_t>(vectors); ++row)
        size += std::abs(r[dy][row * w + i]) * (1 + std::abs(r[x][row * w + i]) * r[rstd][row]);
      r.expect(dweight, i, r[dweight][i] + (with_weight ? dw[i] : 0), size);
      r.expect(dbias, i, r[dbias][i] + (with_weight && layer ? db[i] : 0), size);
    }
  });
  return op;
}

TEST(NormOp, Forward) {
  for (const NormCase& c : norm_cases()) forward_case(c).run();
}

TEST(NormOp, Backward) {
  for (const NormCase& c : norm_cases()) {
    if (c.mean != 0 && c.kind == NormKind::rms_norm) continue;
    for (Fused fused : {Fused::nothing, Fused::residual, Fused::in_place, Fused::no_weight})
      backward_case(c, fused).run();
  }
}

TEST(NormOp, WideRows) {
  for (const NormCase& c : wide_cases()) {
    forward_case(c).run();
    for (Fused fused : {Fused::nothing, Fused::in_place, Fused::no_weight}) backward_case(c, fused).run();
  }
}

// The closed form is the derivative.
TEST(NormOp, TheReferenceOfWideRowsFollowsTheDifferences) {
  const Values x = normal_values(shape(3, 37), 1, 1.5, 0.5), dy = normal_values(shape(3, 37), 2);
  const Values weight = normal_values(shape(37), 3, 0.3, 1);
  for (NormKind kind : {NormKind::layer_norm, NormKind::rms_norm}) {
    const NormGradient closed = norm_gradient(kind, x, weight, dy);
    const Values by_x = norm_differences(kind, x, weight, dy);
    const Values by_weight =
        finite_differences([&](const Values& at) { return weighted_norm(kind, x, at, dy); }, weight);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(closed.x[i], by_x[i], 1e-6);
    for (std::size_t i = 0; i < weight.size(); ++i) EXPECT_NEAR(closed.weight[i], by_weight[i], 1e-6);
  }
}

TEST(NormOp, RejectsWrongTensors) {
  float memory[64] = {};
  const Tensor x = make_tensor(memory, shape(2, 8), DType::f32), vector = make_tensor(memory, shape(8), DType::f32);
  const Tensor rstd = make_tensor(memory, shape(2), DType::f32);
  const auto reject = [](NormArgs args, std::vector<std::string> words) {
    expect_rejected([&](Ops& ops) { ops(args); }, words);
  };
  const NormArgs good{.x = x, .weight = vector, .y = x, .rstd = rstd};
  NormArgs bad = good;
  bad.weight = rstd;
  reject(bad, {"norm: weight is f32[2]", "[8]"});
  bad = good;
  bad.y = make_tensor(memory, shape(2, 8), DType::bf16);
  reject(bad, {"norm: y is bf16[2,8]", "f32"});
  bad = good;
  bad.kind = NormKind::layer_norm;
  reject(bad, {"norm", "mean and bias"});
  bad = good;
  bad.x = make_tensor(memory, shape(2, 8), DType::i32);
  reject(bad, {"norm: x is i32[2,8]"});
  bad = good;
  bad.rstd = {};
  reject(bad, {"norm: rstd is none"});
  NormBackArgs back{.dy = x, .x = x, .weight = vector, .rstd = rstd, .dx = x, .dbias = vector};
  expect_rejected([&](Ops& ops) { ops(back); }, {"norm_back", "bias"});
  back.dbias = {};
  back.dweight = rstd;
  expect_rejected([&](Ops& ops) { ops(back); }, {"norm_back: dweight is f32[2]"});
}

}  // namespace
}  // namespace tera::test
