#include "tests/support/op_test.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/backend/cpu/workspace.h"
#include "tera/backend/plan/plan_ops.h"
#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tests/support/close.h"
#include "tests/support/gpu.h"
#include "tests/support/guarded.h"

namespace tera::test {
namespace {

bool& leaves_cases_out() {
  static bool flag = false;
  return flag;
}

double read(const std::byte* p, DType dtype) {
  const auto get = [p]<class T>(T value) {
    std::memcpy(&value, p, sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::f32: return static_cast<double>(get(float{}));
    case DType::bf16: return static_cast<double>(to_float(get(BFloat16{})));
    case DType::f16: return static_cast<double>(to_float(get(Float16{})));
    case DType::f64: return get(double{});
    case DType::i32: return static_cast<double>(get(std::int32_t{}));
    case DType::i64: return static_cast<double>(get(std::int64_t{}));
    case DType::u8: return static_cast<double>(get(std::uint8_t{}));
  }
  return 0;
}

void write(std::byte* p, DType dtype, double value) {
  const auto put = [p](auto typed) { std::memcpy(p, &typed, sizeof typed); };
  switch (dtype) {
    case DType::f32: return put(static_cast<float>(value));
    case DType::bf16: return put(to_bf16(static_cast<float>(value)));
    case DType::f16: return put(to_f16(static_cast<float>(value)));
    case DType::f64: return put(value);
    case DType::i32: return put(static_cast<std::int32_t>(value));
    case DType::i64: return put(static_cast<std::int64_t>(value));
    case DType::u8: return put(static_cast<std::uint8_t>(value));
  }
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace

double OpCase::stored(DType dtype, double value) {
  std::byte bytes[8];
  write(bytes, dtype, value);
  return read(bytes, dtype);
}

Handle OpCase::input(const std::string& name, const Shape& shape, DType dtype, Values values, Extra extra) {
  for (double& value : values) value = stored(dtype, value);
  slots_.push_back({name, shape, dtype, std::move(values), extra, false});
  return {slots_.size() - 1};
}

Handle OpCase::input(const std::string& name, const Shape& shape, DType dtype, Values values) {
  return input(name, shape, dtype, std::move(values), {});
}

Handle OpCase::output(const std::string& name, const Shape& shape, DType dtype, Extra extra, Values values) {
  if (values.empty()) values.assign(static_cast<std::size_t>(count(shape)), 77);
  const Handle handle = input(name, shape, dtype, std::move(values), extra);
  slots_.back().is_output = true;
  return handle;
}

struct OpCase::Memory {
  std::vector<Guarded> slots;
  std::vector<std::vector<std::byte>> before;  // what lay in each slot, guards included
  std::vector<Tensor> tensors;
};

OpCase::Memory OpCase::make_memory() const {
  Memory memory;
  for (const Slot& slot : slots_) {
    Guarded& piece = memory.slots.emplace_back(slot.shape, slot.dtype, slot.extra.row_gap);
    for (std::size_t i = 0; i < slot.values.size(); ++i)
      write(piece.at(static_cast<std::int64_t>(i)), slot.dtype, slot.values[i]);
    memory.before.push_back(piece.bytes());
    memory.tensors.push_back(piece.tensor());
  }
  return memory;
}

OpCase::Bytes OpCase::outputs_of(const Memory& memory) const {
  Bytes outputs(slots_.size());
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const Guarded& piece = memory.slots[s];
    if (!slots_[s].is_output) {
      EXPECT_EQ(piece.bytes(), memory.before[s]) << "input " << slots_[s].name << " changed";
      continue;
    }
    EXPECT_TRUE(piece.intact()) << "written outside " << slots_[s].name;
    for (std::size_t i = 0; i < piece.stretches(); ++i) {
      const auto elements = piece.stretch(i);
      outputs[s].insert(outputs[s].end(), elements.begin(), elements.end());
    }
  }
  return outputs;
}

OpCase::Bytes OpCase::run_on_cpu(int isa, int threads) const {
  const Memory memory = make_memory();
  const Bound bound(memory.tensors);
  const cpu::CpuWorkspaceRules rules(threads);
  PlanOps plan(rules);
  call_(plan, bound);
  EXPECT_GE(plan.calls(), 1);
  for (std::size_t s = 0; s < slots_.size(); ++s)
    EXPECT_EQ(memory.slots[s].bytes(), memory.before[s]) << "the plan touched memory";

  const auto planned = static_cast<std::int64_t>(plan.workspace_peak());
  const Guarded workspace(shape(planned), DType::u8);
  cpu::CpuOps ops(threads, static_cast<cpu::Isa>(isa));
  ops.bind_workspace({static_cast<std::byte*>(workspace.tensor().data), plan.workspace_peak()});
  call_(ops, bound);
  EXPECT_TRUE(workspace.intact()) << "written outside the planned workspace";
  return outputs_of(memory);
}

OpCase::Bytes OpCase::run_on_gpu(std::int64_t shift) const {
  Memory memory = make_memory();
  std::vector<Tensor*> all;
  for (Tensor& tensor : memory.tensors) all.push_back(&tensor);
  // The tensors lie elsewhere with each call.
  const auto call = [&](Ops& ops) { call_(ops, Bound(memory.tensors)); };
  call_on_gpu(all, call, shift);
  return outputs_of(memory);
}

void OpCase::compare(const Bytes& outputs, const Reference& reference) const {
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const Slot& slot = slots_[s];
    if (!slot.is_output) continue;
    const auto& expected = reference.expected({s});
    ASSERT_EQ(expected.size(), slot.values.size()) << slot.name << " has no expected values";
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double got = read(outputs[s].data() + i * size_of(slot.dtype), slot.dtype);
      const auto& [value, magnitude] = expected[i];
      if (same(got, value)) continue;
      const double bound = slot.extra.terms == 0       ? 0
                           : slot.extra.rounded_inside ? tolerance(slot.extra.inside, slot.extra.terms, magnitude)
                                                       : tolerance(slot.dtype, slot.extra.terms, magnitude, value);
      const double off = std::abs(got - value);
      ASSERT_TRUE(off <= bound) << slot.name << "[" << i << "] is " << got << ", expected " << value << ", off by "
                                << off << ", allowed " << bound;
    }
  }
}

void run_every_other_case() { leaves_cases_out() = true; }

void OpCase::run() const {
  static std::size_t cases = 0;
  if (leaves_cases_out() && cases++ % 2 != 0) return;
  std::vector<Values> values;
  for (const Slot& slot : slots_) values.push_back(slot.values);
  Reference expected(values);
  reference_(expected);
  if (test_device() == TestDevice::gpu)
    check_on_gpu(expected);
  else
    check_on_cpu(expected);
}

void OpCase::check_on_cpu(const Reference& expected) const {
  for (const auto& [isa, isa_name] : EnumNames<cpu::Isa>::values) {
    if (!cpu::supports(isa)) continue;
    SCOPED_TRACE(fmt::format("{} on {}", name_, isa_name));
    const Bytes outputs = run_on_cpu(static_cast<int>(isa), 1);
    compare(outputs, expected);
    EXPECT_EQ(outputs, run_on_cpu(static_cast<int>(isa), 3)) << "three threads give other bits than one";
    if (testing::Test::HasFailure()) return;  // one report is enough
  }
}

void OpCase::check_on_gpu(const Reference& expected) const {
  SCOPED_TRACE(fmt::format("{} on the GPU", name_));
  const Bytes outputs = run_on_gpu(0);
  compare(outputs, expected);
  EXPECT_EQ(outputs, run_on_gpu(0)) << "a second run gives other bits than the first";
  if (testing::Test::HasFailure()) return;
  SCOPED_TRACE("one element behind an aligned address");
  compare(run_on_gpu(1), expected);
}

Values finite_differences(const std::function<double(const Values&)>& f, const Values& x) {
  Values gradient(x.size()), moved = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double h = 1e-3 * (1 + std::abs(x[i]));
    const auto at = [&](double steps) {
      moved[i] = x[i] + steps * h;
      return f(moved);
    };
    gradient[i] = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h);
    moved[i] = x[i];
  }
  return gradient;
}

void expect_rejected(const std::function<void(Ops&)>& call, const std::vector<std::string>& words) {
  const cpu::CpuWorkspaceRules rules(1);
  PlanOps plan(rules);
  try {
    call(plan);
    ADD_FAILURE() << "accepted, expected a complaint about " << joined(words, ", ");
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const std::string& word : words) EXPECT_NE(message.find(word), std::string::npos) << message;
  }
}

}  // namespace tera::test
