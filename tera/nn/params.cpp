#include "tera/nn/params.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "tera/base/error.h"
#include "tera/base/glob.h"
#include "tera/base/joined.h"
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

// The rows of a part, and with init.padding all rows behind it.
void draw(Ops& ops, const ParamSpec& spec, const Part& part, std::uint64_t seed, const Tensor& whole) {
  const std::int64_t rows = spec.init.padding ? spec.shape[0] - part.local_row : part.held()[0];
  const Tensor out = whole.rows(part.local_row, part.local_row + rows);
  if (count(out.shape) == 0) return;
  switch (spec.init.kind) {
    case Init::Kind::zeros: return ops.fill({.out = out, .value = 0});
    case Init::Kind::ones: return ops.fill({.out = out, .value = 1});
    case Init::Kind::normal: break;
  }
  const std::int64_t columns = part.global.rank == 2 ? part.global[1] : 1;
  ops.normal({.out = out,
              .key = rng_stream(seed, part.name),
              .std = spec.init.std,
              .first = part.split == 0 ? part.begin * columns : part.begin,
              .row_stride = columns});
}

void draw(Ops& ops, const ParamSpec& spec, std::uint64_t seed, const Tensor& whole) {
  for (const auto& part : spec.parts) draw(ops, spec, part, seed, whole);
}

// What lies between the parameters that are written first.
std::vector<Bucket::Range> cleared_ranges(const Bucket& bucket) {
  std::vector<Bucket::Range> ranges;
  std::int64_t end = 0;  // of the last of them
  const auto add_up_to = [&](std::int64_t begin) {
    if (begin > end) ranges.push_back({end, begin});
  };
  for (const Param* param : bucket.params) {
    if (!param->spec.written_first) continue;
    const std::int64_t begin = param->offset - bucket.begin;
    add_up_to(begin);
    end = begin + count(param->spec.shape);
  }
  add_up_to(bucket.elements());
  return ranges;
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
            joined(hit, ", "), joined(missed, ", "), spec.name);
}

}  // namespace

ParamStore::ParamStore(DType compute, std::vector<std::string> freeze)
    : compute_(compute), freeze_(std::move(freeze)) {}

Param& ParamStore::add(ParamSpec spec) {
  require(total_ == 0, "parameter '{}' was added after the layout was fixed", spec.name);
  for (const auto& pattern : freeze_)
    if (matches(pattern, spec)) (spec.is_counted() ? spec.held : spec.trainable) = spec.is_counted();
  if (spec.is_counted()) spec.trainable = false;
  return params_.emplace_back(Param{.spec = std::move(spec), .blocks = {block_}});
}

void ParamStore::share(Param& param) { param.blocks.push_back(block_); }

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

void ParamStore::lay_out(const FlatRules& rules) {
  rules_ = rules;
  if (rules.whole_model) check_freeze();
  make_buckets();
  ends_ = {};
  for (const bool expert : {false, true}) {
    for (auto& bucket : buckets_)
      if (bucket.expert == expert) number(bucket);
    if (!expert) dense_end_ = ends_.flat;
  }
  std::int64_t next = ends_.flat;
  for (auto& param : params_) {
    if (param.spec.trainable || param.spec.is_counted()) continue;
    param.offset = next;
    next += align(count(param.spec.shape));
  }
  total_ = next;

  by_name_.clear();
  for (auto& param : params_) by_name_.push_back(&param);
  std::sort(by_name_.begin(), by_name_.end(),
            [](const Param* a, const Param* b) { return a->spec.name < b->spec.name; });
  for (std::size_t i = 1; i < by_name_.size(); ++i)
    require(by_name_[i - 1]->spec.name != by_name_[i]->spec.name, "two parameters are named '{}'",
            by_name_[i]->spec.name);
}

// Gradients are complete in the reverse order of use, so buckets are filled from the last block to the first: each is
// complete as early as possible. A table that another stage holds too has a bucket of its own, the same on both.
void ParamStore::make_buckets() {
  struct Filling {  // of the bucket that takes parameters of a kind
    bool open = false;
    int bucket = -1, block = -1;
    std::int64_t filled = 0;
  };
  buckets_.clear();
  ByKind<Filling> filling;
  const auto put = [&](Param& param, bool alone) {
    Filling& at = param.spec.expert ? filling.expert : filling.dense;
    const bool new_block = param.blocks.front() != at.block;
    if (!at.open || alone || (rules_.bucket_per_block && new_block)) {
      at = {.bucket = static_cast<int>(buckets_.size())};
      buckets_.push_back({.expert = param.spec.expert});
    }
    Bucket& bucket = buckets_[static_cast<std::size_t>(at.bucket)];
    at.block = param.blocks.front();
    param.bucket = at.bucket;
    bucket.params.push_back(&param);
    bucket.blocks.insert(bucket.blocks.end(), param.blocks.begin(), param.blocks.end());
    at.filled += align(count(param.spec.shape));
    at.open = !alone;
  };
  std::vector<Param*> trained;
  for (auto& param : params_)
    if (param.spec.trainable) trained.push_back(&param);
  std::stable_sort(trained.begin(), trained.end(),
                   [](const Param* a, const Param* b) { return a->blocks.front() > b->blocks.front(); });
  for (std::size_t i = 0; i < trained.size(); ++i) {
    put(*trained[i], trained[i]->spec.on_another_stage);
    const bool block_ends = i + 1 == trained.size() || trained[i + 1]->blocks.front() != trained[i]->blocks.front();
    for (Filling* at : {&filling.dense, &filling.expert})
      if (rules_.bucket_size > 0 && at->filled >= rules_.bucket_size && block_ends) at->open = false;
  }
  for (auto& bucket : buckets_) {
    std::sort(bucket.blocks.begin(), bucket.blocks.end());
    bucket.blocks.erase(std::unique(bucket.blocks.begin(), bucket.blocks.end()), bucket.blocks.end());
  }
}

// Within a bucket: decayed parameters, others, and last those whose gradients are summed over replicas, so that one
// call can sum them all; each of these in the order of adding.
void ParamStore::number(Bucket& bucket) {
  const auto rank = [](const Param* param) { return param->spec.decay ? 0 : param->spec.partial_gradient ? 2 : 1; };
  std::stable_sort(bucket.params.begin(), bucket.params.end(),
                   [&](const Param* a, const Param* b) { return rank(a) < rank(b); });
  std::int64_t next = ends_.flat;
  bucket.begin = bucket.decayed_end = next;
  for (Param* param : bucket.params) {
    param->offset = next;
    next += align(count(param->spec.shape));
    if (param->spec.decay) bucket.decayed_end = next;
  }
  bucket.shares = rules_.shares.of(bucket.expert);
  const std::int64_t shares = bucket.shares.count, share = align((next - bucket.begin + shares - 1) / shares);
  bucket.end = bucket.begin + share * shares;
  bucket.keeps_weight = rules_.keep_weights || shares == 1;
  bucket.keeps_grad = rules_.keep_grads || shares == 1;
  const auto take = [](std::int64_t& end, std::int64_t elements) { return std::exchange(end, end + elements); };
  take(ends_.flat, bucket.elements());
  bucket.share_begin = take(ends_.shares, share);
  bucket.cleared = cleared_ranges(bucket);
  bucket.weight_begin = take(ends_.weights, bucket.keeps_weight ? bucket.elements() : share);
  bucket.grad_begin = take(ends_.grads, bucket.keeps_grad ? bucket.elements() : share);
}

void ParamStore::bind(const Memory& memory) {
  require(total_ > 0, "parameters are bound before they are laid out");
  const std::int64_t frozen = total_ - ends_.flat;
  const bool train = memory.grads != nullptr && ends_.flat > 0;
  const bool own_masters = train && compute_ != DType::f32;
  const Tensor weights = memory.weights.take(shape(ends_.weights + frozen), compute_, "weights");
  const Tensor grads = train ? memory.grads->take(shape(ends_.grads), DType::f32, "gradients") : Tensor{};
  const Tensor masters =
      own_masters ? memory.masters->take(shape(share_elements()), DType::f32, "master weights") : Tensor{};
  for (auto& constant : constants_) constant.value = memory.constants.take(constant.shape, DType::f32, constant.name);

  for (auto& param : params_) {
    param.value = param.grad = param.master = {};
    if (param.spec.is_counted())
      param.value = memory.weights.take(param.spec.shape, DType::f32, param.spec.name);
    else if (!param.spec.trainable)
      param.value = flat_range(weights, ends_.weights + param.offset - ends_.flat, param.spec.shape);
  }
  bind_buckets(weights, masters, grads);
  bind_rooms(memory, train);
  groups_.clear();
  if (train) make_groups();
}

void ParamStore::bind_buckets(const Tensor& weights, const Tensor& masters, const Tensor& grads) {
  for (auto& bucket : buckets_) {
    const auto own = [&](const Tensor& flat, std::int64_t begin, bool whole) {
      if (whole) begin += bucket.own_begin();
      return flat ? flat.rows(begin, begin + bucket.share()) : Tensor{};
    };
    const auto all = [&](const Tensor& flat, std::int64_t begin, bool whole) {
      return flat && whole ? flat.rows(begin, begin + bucket.elements()) : Tensor{};
    };
    bucket.own_weight = own(weights, bucket.weight_begin, bucket.keeps_weight);
    bucket.own_grad = own(grads, bucket.grad_begin, bucket.keeps_grad);
    bucket.own_master = masters ? own(masters, bucket.share_begin, false) : grads ? bucket.own_weight : Tensor{};
    place_weights(bucket, all(weights, bucket.weight_begin, bucket.keeps_weight));
    place_grads(bucket, all(grads, bucket.grad_begin, bucket.keeps_grad));
    if (bucket.shares.count > 1 || !grads) continue;
    for (Param* param : bucket.params)
      param->master = flat_range(bucket.own_master, param->offset - bucket.begin, param->spec.shape);
  }
}

// A block's buckets, and one more that is on its way meanwhile.
ParamStore::Rooms ParamStore::count_rooms(bool Bucket::*kept) const {
  Rooms rooms;
  std::map<int, int> buckets_of_block;
  for (const auto& bucket : buckets_) {
    if (bucket.*kept) continue;
    rooms.elements = std::max(rooms.elements, bucket.elements());
    for (int block : bucket.blocks) rooms.number = std::max(rooms.number, ++buckets_of_block[block] + 1);
  }
  return rooms;
}

void ParamStore::bind_rooms(const Memory& memory, bool train) {
  const Rooms weights = count_rooms(&Bucket::keeps_weight), grads = train ? count_rooms(&Bucket::keeps_grad) : Rooms{};
  weight_rooms_.clear();
  grad_rooms_.clear();
  for (int i = 0; i < weights.number; ++i)
    weight_rooms_.push_back(memory.weights.take(shape(weights.elements), compute_, "fetched weights"));
  for (int i = 0; i < grads.number; ++i)
    grad_rooms_.push_back(memory.grads->take(shape(grads.elements), DType::f32, "gradients of a block"));
}

void ParamStore::place_weights(Bucket& bucket, const Tensor& whole) {
  bucket.weight = whole;
  for (Param* param : bucket.params)
    param->value = whole ? flat_range(whole, param->offset - bucket.begin, param->spec.shape) : Tensor{};
}

void ParamStore::place_grads(Bucket& bucket, const Tensor& whole) {
  bucket.grad = whole;
  for (Param* param : bucket.params)
    param->grad = whole ? flat_range(whole, param->offset - bucket.begin, param->spec.shape) : Tensor{};
}

void ParamStore::empty_grads(Ops& ops, Bucket& bucket) {
  for (const auto& [begin, end] : bucket.cleared) ops.fill({.out = bucket.grad.rows(begin, end), .value = 0});
  for (Param* param : bucket.params) param->grad_empty = param->spec.written_first;
}

void ParamStore::complete_grads(Ops& ops, Bucket& bucket) {
  for (Param* param : bucket.params)
    if (!param->next_adds()) ops.fill({.out = param->grad, .value = 0});
}

void ParamStore::make_groups() {
  for (const auto& bucket : buckets_) {
    const std::int64_t share = bucket.share(), begin = bucket.begin + bucket.own_begin();
    const std::int64_t decayed = std::clamp(bucket.decayed_end - begin, std::int64_t{0}, share);
    for (const auto& [from, to, decay] : {std::tuple{std::int64_t{0}, decayed, true}, {decayed, share, false}}) {
      if (from == to) continue;
      const bool copied = compute_ != DType::f32;
      groups_.push_back({bucket.own_master.rows(from, to), bucket.own_grad.rows(from, to),
                         copied ? bucket.own_weight.rows(from, to) : Tensor{}, decay, bucket.share_begin + from,
                         bucket.share_begin + to});
    }
  }
}

void ParamStore::initialize(Ops& ops, std::uint64_t seed) {
  for (auto& param : params_) {
    if (param.spec.trainable && param.bucket >= 0 && buckets_[static_cast<std::size_t>(param.bucket)].own_grad)
      continue;
    ops.fill({.out = param.value, .value = 0});
    draw(ops, param.spec, seed, param.value);
  }
  for (auto& bucket : buckets_)
    if (bucket.own_grad) initialize(ops, seed, bucket);
  fill_constants(ops);
}

// Draws a whole bucket in fp32 where its gradients will be, keeps what this rank keeps, and clears it.
void ParamStore::initialize(Ops& ops, std::uint64_t seed, Bucket& bucket) {
  const Tensor room = bucket.grad ? bucket.grad : grad_rooms_.front().rows(0, bucket.elements());
  ops.fill({.out = room, .value = 0});
  for (const Param* param : bucket.params)
    draw(ops, param->spec, seed, flat_range(room, param->offset - bucket.begin, param->spec.shape));
  const Tensor own = room.rows(bucket.own_begin(), bucket.own_end());
  ops.copy(bucket.weight ? CopyArgs{.src = room, .dst = bucket.weight}
                         : CopyArgs{.src = own, .dst = bucket.own_weight});
  if (bucket.own_master.data != bucket.own_weight.data) ops.copy({.src = own, .dst = bucket.own_master});
  ops.fill({.out = room, .value = 0});
  if (bucket.own_grad) ops.fill({.out = bucket.own_grad, .value = 0});
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
  for (const auto& param : params_) n += param.spec.is_counted() ? 0 : count(param.spec.shape);
  return n;
}

}  // namespace tera
