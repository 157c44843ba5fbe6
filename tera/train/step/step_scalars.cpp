#include "tera/train/step/step_scalars.h"

#include <algorithm>

#include "tera/base/error.h"
#include "tera/ops/copy.h"

namespace tera {
namespace {

constexpr std::size_t host_alignment = sizeof(double);

DType slot_dtype(Combine combine) { return combine == Combine::per_rank ? DType::i32 : DType::f64; }

}  // namespace

const StepReading::Value* StepReading::find(std::string_view name) const {
  if (!layout_) return nullptr;
  for (const Value& value : *layout_)
    if (value.spec.name == name && (value.spec.in_evaluation || !of_evaluation_)) return &value;
  return nullptr;
}

double StepReading::number_at(std::string_view name, std::size_t index) const {
  const Value* value = find(name);
  require(value != nullptr && index < value->count, "a step has no number {} of '{}'", index, name);
  const auto read = [&]<class T>(T /*type*/) {
    const auto* first = reinterpret_cast<const T*>(host_.subspan(value->offset).data());
    return static_cast<double>(first[index * value->stride]);
  };
  switch (value->dtype) {
    case DType::f64: return read(double{});
    case DType::f32: return read(float{});
    case DType::i32: return read(std::int32_t{});
    default: fail("'{}' has values of a dtype that is no number of a step", name);
  }
}

std::size_t StepReading::count(std::string_view name) const {
  const Value* value = find(name);
  return value ? value->count : 0;
}

std::span<const std::byte> StepReading::bytes_of(std::string_view name, std::size_t element_bytes) const {
  const Value* value = find(name);
  if (!value) return {};
  require(size_of(value->dtype) == element_bytes && value->stride == 1, "'{}' is read as another type", name);
  return host_.subspan(value->offset, value->count * element_bytes);
}

std::size_t StepScalars::add(ScalarSpec spec) {
  require(spec.count > 0 && (spec.combine != Combine::per_rank || spec.count == 1), "'{}' has {} values", spec.name,
          spec.count);
  for (const auto& other : values_) require(other.spec.name != spec.name, "two numbers are called '{}'", spec.name);
  values_.push_back({.spec = std::move(spec), .dtype = DType::f64});
  values_.back().dtype = slot_dtype(values_.back().spec.combine);
  first_.push_back(0);
  tensors_.emplace_back();
  return values_.size() - 1;
}

void StepScalars::attach(std::size_t id, const Tensor& tensor) {
  StepReading::Value& value = values_.at(id);
  require(value.spec.combine == Combine::same && count(tensor.shape) == value.spec.count,
          "'{}' has {} values, and is given a tensor of {}", value.spec.name, value.spec.count, count(tensor.shape));
  value.dtype = tensor.dtype;
  tensors_[id] = tensor;
}

// Numbers of evaluations come first, so that these combine the first rows alone.
void StepScalars::lay_out() {
  blocks_ = {};
  for (const bool in_evaluation : {true, false}) {
    for (std::size_t id = 0; id < values_.size(); ++id) {
      const ScalarSpec& spec = values_[id].spec;
      if (spec.combine == Combine::same || spec.in_evaluation != in_evaluation) continue;
      Block& block = blocks_[static_cast<std::size_t>(spec.combine)];
      first_[id] = block.count;
      block.count += spec.count;
      if (in_evaluation) block.in_evaluation = block.count;
    }
  }
}

void StepScalars::bind(Arena& arena, int ranks) {
  lay_out();
  for (const Combine combine : {Combine::sum, Combine::max, Combine::per_rank}) {
    Block& block = blocks_[static_cast<std::size_t>(combine)];
    if (block.count == 0) continue;
    block.slots = arena.take(shape(block.count), slot_dtype(combine), "numbers of a step");
    if (combine == Combine::per_rank)
      block.gathered = arena.take(shape(ranks * block.count), slot_dtype(combine), "numbers of a step");
  }
}

void StepScalars::lay_out_host() {
  std::size_t at = 0;
  const auto take = [&](std::size_t bytes) {
    const std::size_t begin = align_up(at, host_alignment);
    at = begin + bytes;
    return begin;
  };
  for (Block& block : blocks_)
    if (block.count > 0) block.offset = take(read_from(block).bytes());
  for (std::size_t id = 0; id < values_.size(); ++id) {
    StepReading::Value& value = values_[id];
    value.count = static_cast<std::size_t>(value.spec.count);
    if (value.spec.combine == Combine::same) {
      require(static_cast<bool>(tensors_[id]), "'{}' has no tensor", value.spec.name);
      value.offset = take(tensors_[id].bytes());
      continue;
    }
    const Block& in = block(value.spec.combine);
    value.offset = in.offset + static_cast<std::size_t>(first_[id]) * size_of(value.dtype);
    if (!in.gathered) continue;
    value.count = static_cast<std::size_t>(in.gathered.dim(0) / in.count);
    value.stride = static_cast<std::size_t>(in.count);
  }
  host_bytes_ = align_up(at, host_alignment);
}

void StepScalars::allocate_host(Device& device) {
  lay_out_host();
  host_ = device.allocate_host((step_readings + 1) * host_bytes_);
  std::ranges::fill(host_, std::byte{});
}

void StepScalars::clear(Ops& ops) const {
  for (const Block& block : blocks_)
    if (block.count > 0) ops(FillArgs{.out = block.slots, .value = 0});
}

Tensor StepScalars::slot(std::size_t id) const {
  const ScalarSpec& spec = values_.at(id).spec;
  if (spec.combine == Combine::same) return tensors_[id];
  return block(spec.combine).slots.rows(first_[id], first_[id] + spec.count);
}

void StepScalars::set(Ops& ops, std::size_t id, std::span<const double> values) const {
  ops.from_host(std::as_bytes(values), slot(id));
}

void StepScalars::combine(Ops& ops, Comm& world, When when) const {
  const auto rows = [&](const Block& block) { return when == When::step ? block.count : block.in_evaluation; };
  for (const auto& [kind, how] : {std::pair{Combine::sum, Reduce::sum}, std::pair{Combine::max, Reduce::max}})
    if (const Block& of_kind = block(kind); rows(of_kind) > 0)
      ops.wait(world.all_reduce(of_kind.slots.rows(0, rows(of_kind)), how, ops.record()));
  if (const Block& each = block(Combine::per_rank); rows(each) > 0)
    ops.wait(world.all_gather(each.slots, each.gathered, ops.record()));
}

Ticket StepScalars::begin_read(Ops& ops, When when, std::size_t reading) const {
  const std::span<std::byte> to = host(reading);
  const auto copy = [&](const Tensor& from, std::size_t offset) {
    ops.to_host_later(from, to.subspan(offset, from.bytes()));
  };
  for (const Block& block : blocks_) {
    if (when == When::evaluation && block.in_evaluation == 0) continue;
    if (block.count > 0) copy(read_from(block), block.offset);
  }
  for (std::size_t id = 0; id < values_.size() && when == When::step; ++id)
    if (tensors_[id]) copy(tensors_[id], values_[id].offset);
  return ops.record();
}

StepReading StepScalars::reading(std::size_t reading) const {
  StepReading read;
  read.layout_ = &values_;
  read.host_ = host(reading);
  read.of_evaluation_ = reading == evaluation_reading;
  return read;
}

}  // namespace tera
