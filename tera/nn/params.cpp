#include "tera/nn/params.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "tera/base/error.h"
#include "tera/base/glob.h"
#include "tera/base/rng.h"
#include "tera/ops/ops.h"

namespace tera {
namespace {

constexpr std::int64_t align(std::int64_t elements) {
  return (elements + ParamStore::alignment - 1) / ParamStore::alignment * ParamStore::alignment;
}

Tensor flat_range(const Tensor& flat, std::int64_t begin, const Shape& shape) {
  return flat.rows(begin, begin + count(shape)).view(shape);
}

// Draws rows of a parameter that belong to a part.
void draw(Ops& ops, const Init& init, RngKey key, const Tensor& out) {
  switch (init.kind) {
    case Init::Kind::zeros: return ops.fill({.out = out, .value = 0});
    case Init::Kind::ones: return ops.fill({.out = out, .value = 1});
    case Init::Kind::normal: return ops.normal({.out = out, .key = key, .std = init.std});
  }
}

void upload(Ops& ops, std::span<const float> values, const Tensor& to) {
  std::vector<std::byte> converted(to.bytes());
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (to.dtype) {
      case DType::f32: reinterpret_cast<float*>(converted.data())[i] = values[i]; break;
      case DType::bf16: reinterpret_cast<BFloat16*>(converted.data())[i] = to_bf16(values[i]); break;
      case DType::f16: reinterpret_cast<Float16*>(converted.data())[i] = to_f16(values[i]); break;
      default: fail("parameters are not stored as {}", name_of(to.dtype));
    }
  }
  ops.from_host(converted, to);
}

bool matches(const std::string& pattern, const ParamSpec& spec) {
  return matches_glob(pattern, spec.name) || std::any_of(spec.parts.begin(), spec.parts.end(), [&](const Part& part) {
           return matches_glob(pattern, part.name);
         });
}

// The parts of a parameter have one gradient and one update: patterns must name all of them or none.
void check_frozen_whole(std::span<const std::string> patterns, const ParamSpec& spec) {
  std::vector<std::string_view> hit, missed;
  const std::string* guilty = nullptr;
  for (const auto& part : spec.parts) {
    const auto pattern = std::find_if(patterns.begin(), patterns.end(), [&](const std::string& each) {
      return matches_glob(each, spec.name) || matches_glob(each, part.name);
    });
    if (pattern != patterns.end()) guilty = &*pattern;
    (pattern != patterns.end() ? hit : missed).push_back(part.name);
  }
  if (guilty == nullptr || missed.empty()) return;
  fail_user("model.freeze: '{}' matches {} but not {}, and they are one parameter; '{}' freezes all of it", *guilty,
            fmt::join(hit, ", "), fmt::join(missed, ", "), spec.name);
}

}  // namespace

ParamStore::ParamStore(DType compute, std::vector<std::string> freeze)
    : compute_(compute), freeze_(std::move(freeze)) {}

Param& ParamStore::add(ParamSpec spec) {
  require(total_ == 0, "parameter '{}' was added after the layout was fixed", spec.name);
  for (const auto& pattern : freeze_)
    if (matches(pattern, spec)) spec.trainable = false;
  return params_.emplace_back(Param{std::move(spec), {}, {}, {}, 0});
}

Constant& ParamStore::add_constant(Constant constant) {
  for (auto& known : constants_)
    if (known.name == constant.name && known.shape == constant.shape && known.arguments == constant.arguments)
      return known;
  return constants_.emplace_back(std::move(constant));
}

void ParamStore::check_freeze() const {
  for (const auto& pattern : freeze_) {
    const bool found =
        std::any_of(params_.begin(), params_.end(), [&](const Param& param) { return matches(pattern, param.spec); });
    require_user(found, "model.freeze: '{}' matches no parameter; a name is such as '{}'", pattern,
                 params_.empty() ? std::string_view() : std::string_view(params_.back().spec.name));
  }
  for (const auto& param : params_) check_frozen_whole(freeze_, param.spec);
}

void ParamStore::lay_out() {
  check_freeze();
  std::int64_t next = 0;
  const auto place = [&](auto wanted) {
    for (auto& param : params_) {
      if (!wanted(param.spec)) continue;
      param.offset = next;
      next += align(count(param.spec.shape));
    }
    return next;
  };
  decayed_ = place([](const ParamSpec& spec) { return spec.trainable && spec.decay; });
  trained_ = place([](const ParamSpec& spec) { return spec.trainable && !spec.decay; });
  total_ = place([](const ParamSpec& spec) { return !spec.trainable; });

  by_name_.clear();
  for (auto& param : params_) by_name_.push_back(&param);
  std::sort(by_name_.begin(), by_name_.end(),
            [](const Param* a, const Param* b) { return a->spec.name < b->spec.name; });
  for (std::size_t i = 1; i < by_name_.size(); ++i)
    require(by_name_[i - 1]->spec.name != by_name_[i]->spec.name, "two parameters are named '{}'",
            by_name_[i]->spec.name);
}

void ParamStore::bind(const Memory& memory) {
  require(total_ > 0, "parameters are bound before they are laid out");
  const Tensor weights = memory.weights.take(shape(total_), compute_, "weights");
  const bool train = memory.grads != nullptr && trained_ > 0;
  const bool own_masters = train && compute_ != DType::f32;
  const Tensor grads = train ? memory.grads->take(shape(trained_), DType::f32, "gradients") : Tensor{};
  const Tensor masters = own_masters ? memory.masters->take(shape(trained_), DType::f32, "master weights") : Tensor{};

  for (auto& param : params_) {
    param.value = flat_range(weights, param.offset, param.spec.shape);
    if (!train || !param.spec.trainable) continue;
    param.grad = flat_range(grads, param.offset, param.spec.shape);
    param.master = own_masters ? flat_range(masters, param.offset, param.spec.shape) : param.value;
  }
  for (auto& constant : constants_) constant.value = memory.constants.take(constant.shape, DType::f32, constant.name);
  groups_ = train ? make_groups(weights, masters, grads) : std::vector<Group>{};
}

std::vector<ParamStore::Group> ParamStore::make_groups(const Tensor& weights, const Tensor& masters,
                                                       const Tensor& grads) const {
  std::vector<Group> groups;
  for (const auto& [begin, end, decay] : {std::tuple{std::int64_t{0}, decayed_, true}, {decayed_, trained_, false}}) {
    if (begin == end) continue;
    const Tensor weight = weights.rows(begin, end);
    const Tensor master = masters ? masters.rows(begin, end) : weight;
    groups.push_back({master, grads.rows(begin, end), masters ? weight : Tensor{}, decay, begin, end});
  }
  return groups;
}

void ParamStore::initialize(Ops& ops, std::uint64_t seed) {
  for (auto& param : params_) {
    const bool own_master = param.master && param.master.data != param.value.data;
    const std::array both{param.value, own_master ? param.master : Tensor{}};
    for (const Tensor& tensor : both) {
      if (!tensor) continue;
      ops.fill({.out = tensor, .value = 0});
      for (const auto& part : param.spec.parts) {
        const std::int64_t rows = param.spec.init.padding ? param.spec.shape[0] - part.local_row : part.global[0];
        draw(ops, param.spec.init, rng_stream(seed, part.name), tensor.rows(part.local_row, part.local_row + rows));
      }
    }
  }
  fill_constants(ops);
}

void ParamStore::fill_constants(Ops& ops) {
  for (auto& constant : constants_) {
    std::vector<float> values(static_cast<std::size_t>(count(constant.shape)));
    constant.fill(values);
    upload(ops, values, constant.value);
  }
}

Param& ParamStore::find(const std::string& name) {
  for (auto& param : params_)
    if (param.spec.name == name) return param;
  fail("there is no parameter '{}'", name);
}

std::int64_t ParamStore::count_elements() const {
  std::int64_t n = 0;
  for (const auto& param : params_) n += count(param.spec.shape);
  return n;
}

void write_part(Ops& ops, const Param& param, const Part& part, std::span<const float> values) {
  if (static_cast<std::int64_t>(values.size()) != count(part.global))
    fail("'{}' takes {} values, not {}", part.name, to_string(part.global), values.size());
  const std::int64_t end = part.local_row + part.global[0];
  upload(ops, values, param.value.rows(part.local_row, end));
  if (param.master && param.master.data != param.value.data)
    upload(ops, values, param.master.rows(part.local_row, end));
}

std::vector<float> read_part(Ops& ops, const Tensor& whole, const Part& part) {
  const Tensor from = whole.rows(part.local_row, part.local_row + part.global[0]);
  std::vector<std::byte> raw(from.bytes());
  ops.to_host(from, raw);
  std::vector<float> values(static_cast<std::size_t>(count(part.global)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (from.dtype) {
      case DType::f32: values[i] = reinterpret_cast<const float*>(raw.data())[i]; break;
      case DType::bf16: values[i] = to_float(reinterpret_cast<const BFloat16*>(raw.data())[i]); break;
      case DType::f16: values[i] = to_float(reinterpret_cast<const Float16*>(raw.data())[i]); break;
      default: fail("parameters are not stored as {}", name_of(from.dtype));
    }
  }
  return values;
}

}  // namespace tera
