#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/ops/copy.h"
#include "tests/support/gpu.h"
#include "tests/support/op_test.h"

namespace tera::test {
namespace {

OpCase copy_case(const Shape& s, DType from, DType to, std::int64_t src_gap = 0, std::int64_t dst_gap = 0) {
  OpCase op(fmt::format("copy {} to {} {} gaps {} {}", name_of(from), name_of(to), to_string(s), src_gap, dst_gap));
  const bool integer = !is_float(from) && from != DType::f64;
  const Handle src =
      op.input("src", s, from, integer ? integer_values(s, 1, 200) : normal_values(s, 1), {.row_gap = src_gap});
  const Handle dst = op.output("dst", s, to, {.row_gap = dst_gap, .terms = 0});
  op.call([=](Ops& ops, const Bound& at) { ops(CopyArgs{.src = at[src], .dst = at[dst]}); });
  op.reference([=](Reference& r) {
    for (std::size_t i = 0; i < r[src].size(); ++i) r.expect(dst, i, OpCase::stored(to, r[src][i]), 0);
  });
  return op;
}

// Copies heads from the middle of one tensor to the front of another: dims 0 and 1 are strided on both sides.
OpCase sliced_copy_case(DType from, DType to) {
  OpCase op(fmt::format("sliced copy {} to {}", name_of(from), name_of(to)));
  const Handle src = op.input("src", shape(3, 5, 7), from, normal_values(shape(3, 5, 7), 1));
  const Handle dst = op.output("dst", shape(3, 2, 9), to, {.terms = 0});
  op.call(
      [=](Ops& ops, const Bound& at) { ops(CopyArgs{.src = at[src].slice(1, 2, 4), .dst = at[dst].slice(2, 1, 8)}); });
  op.reference([=](Reference& r) {
    for (std::size_t i = 0; i < r[dst].size(); ++i) r.expect(dst, i, r[dst][i], 0);
    for (std::size_t a = 0; a < 3; ++a)
      for (std::size_t b = 0; b < 2; ++b)
        for (std::size_t c = 0; c < 7; ++c)
          r.expect(dst, (a * 2 + b) * 9 + 1 + c, OpCase::stored(to, r[src][(a * 5 + 2 + b) * 7 + c]), 0);
  });
  return op;
}

OpCase fill_case(DType dtype, double value, std::int64_t n) {
  OpCase op(fmt::format("fill {} with {}", name_of(dtype), value));
  const Handle out = op.output("out", shape(n), dtype, {.terms = 0});
  op.call([=](Ops& ops, const Bound& at) { ops(FillArgs{.out = at[out], .value = value}); });
  op.reference([=](Reference& r) {
    for (std::size_t i = 0; i < r[out].size(); ++i) r.expect(out, i, OpCase::stored(dtype, value), 0);
  });
  return op;
}

TEST(CopyOp, ConvertsAndCopies) {
  for (DType from : float_dtypes) {
    for (DType to : float_dtypes) {
      for (const Shape& s : {shape(1), shape(67), shape(3, 20), shape(2, 3, 5)}) copy_case(s, from, to).run();
      copy_case(shape(5, 19), from, to, 3, 0).run();
      copy_case(shape(5, 4, 4), from, to, 0, 7).run();
      copy_case(shape(40, 1100), from, to, 1, 2).run();
      copy_case(shape(6, 64), from, to, 8, 16).run();  // rows that can be moved 16 bytes at a time
      sliced_copy_case(from, to).run();
    }
  }
  for (DType dtype : {DType::f64, DType::i32, DType::i64, DType::u8}) copy_case(shape(9, 5), dtype, dtype, 2, 3).run();
  copy_case(shape(40000), DType::f32, DType::f32).run();  // several tasks
  copy_case(shape(40000), DType::f32, DType::bf16).run();
}

// A copy is tested on every instruction set, or on the GPU.
void copy_everywhere(const Tensor& src, const Tensor& dst, const std::function<void(std::string_view)>& check) {
  if (test_device() == TestDevice::gpu) {
    Tensor from = src, to = dst;
    Tensor* const both[] = {&from, &to};
    call_on_gpu(both, [&](Ops& ops) { ops(CopyArgs{.src = from, .dst = to}); });
    return check("GPU");
  }
  for (const auto& [isa, name] : EnumNames<cpu::Isa>::values) {
    if (!cpu::supports(isa)) continue;
    cpu::CpuOps(1, isa)(CopyArgs{.src = src, .dst = dst});
    check(name);
  }
}

// A GPU chooses the bits of a NaN itself.
bool any_nan_will_do(float value) { return test_device() == TestDevice::gpu && std::isnan(value); }

TEST(CopyOp, ConversionsAgreeWithTheHostOnEveryPattern) {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(bits.size());
  for (DType dtype : {DType::bf16, DType::f16}) {
    const auto check = [&](std::string_view where) {
      for (std::size_t i = 0; i < bits.size(); ++i) {
        const auto b = static_cast<std::uint16_t>(i);
        const float host = dtype == DType::bf16 ? to_float(BFloat16{b}) : to_float(Float16{b});
        if (any_nan_will_do(host) && std::isnan(wide[i])) continue;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(host)) << where << " " << i;
      }
    };
    copy_everywhere(make_tensor(bits.data(), shape(65536), dtype), make_tensor(wide.data(), shape(65536), DType::f32),
                    check);
  }
}

TEST(CopyOp, RoundingAgreesWithTheHost) {
  std::vector<float> values;
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent)  // around every tie of both formats
    for (std::uint32_t low :
         {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0x18000u, 0x7fffffu})
      for (std::uint32_t sign : {0u, 0x80000000u}) values.push_back(std::bit_cast<float>(sign | exponent << 23 | low));
  const auto n = static_cast<std::int64_t>(values.size());
  std::vector<std::uint16_t> out(values.size());
  for (DType dtype : {DType::bf16, DType::f16}) {
    const auto widened = [&](std::uint16_t b) {
      return dtype == DType::bf16 ? to_float(BFloat16{b}) : to_float(Float16{b});
    };
    const auto check = [&](std::string_view where) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (any_nan_will_do(values[i]) && std::isnan(widened(out[i]))) continue;
        ASSERT_EQ(out[i], dtype == DType::bf16 ? to_bf16(values[i]).bits : to_f16(values[i]).bits)
            << where << " " << values[i];
      }
    };
    copy_everywhere(make_tensor(values.data(), shape(n), DType::f32), make_tensor(out.data(), shape(n), dtype), check);
  }
}

TEST(CopyOp, Fill) {
  for (const auto& [dtype, name] : EnumNames<DType>::values)
    for (double value : {0.0, 3.0}) fill_case(dtype, value, 37).run();
  fill_case(DType::f32, -1.5, 40000).run();
  fill_case(DType::i64, static_cast<double>(1LL << 40), 3).run();
}

TEST(CopyOp, HostAndBack) {
  if (test_device() == TestDevice::gpu) GTEST_SKIP() << "part of every case there";
  cpu::CpuOps ops(1, cpu::best_isa());
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  std::vector<float> device(6), back(6);
  const Tensor tensor = make_tensor(device.data(), shape(2, 3), DType::f32);
  ops.from_host(std::as_bytes(std::span(values)), tensor);
  ops.to_host(tensor, std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, values);
  expect_rejected([&](Ops& o) { o.from_host(std::as_bytes(std::span(values)).first(20), tensor); },
                  {"from_host: 20 bytes", "f32[2,3]"});
  expect_rejected([&](Ops& o) { o.to_host(tensor.slice(1, 0, 2), std::as_writable_bytes(std::span(back))); },
                  {"to_host", "dense"});
}

TEST(CopyOp, RejectsWrongTensors) {
  double memory[64] = {};
  const Tensor x = make_tensor(memory, shape(2, 6), DType::f32), ints = make_tensor(memory, shape(2, 6), DType::i32);
  expect_rejected([&](Ops& ops) { ops(CopyArgs{.src = x, .dst = ints}); }, {"copy", "float dtypes"});
  expect_rejected([&](Ops& ops) { ops(CopyArgs{.src = x, .dst = x.rows(0, 1)}); }, {"copy: dst is f32[1,6]", "[2,6]"});
  expect_rejected([&](Ops& ops) { ops(CopyArgs{.src = {}, .dst = x}); }, {"copy: src is none"});
  expect_rejected([&](Ops& ops) { ops(FillArgs{.out = x.slice(1, 0, 2)}); }, {"fill: out is f32[2,2] (strided)"});
}

}  // namespace
}  // namespace tera::test
