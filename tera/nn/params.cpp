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
#include "tera/ops/copy.h"
#include "tera/ops/ops.h"
#include "tera/ops/random.h"

namespace tera {
namespace {

constexpr std::int64_t align(std::int64_t elements) {
  return (elements + ParamStore::alignment - 1) / ParamStore::alignment * ParamStore::alignment;
}

Tensor flat_range(const Tensor& flat, std::int64_t begin, const Shape& shape) {
  return flat.rows(begin, begin + count(shape)).view(shape);
}

// Draws the rows of a part, and with init.padding all rows after it.
void draw(Ops& ops, const ParamSpec& spec, const Part& part, std::uint64_t seed, const Tensor& full) {
  const std::int64_t rows = spec.init.padding ? spec.shape[0] - part.local_row : part.local_shape()[0];
  const Tensor out = full.rows(part.local_row, part.local_row + rows);
  if (count(out.shape) == 0) return;
  switch (spec.init.kind) {
    case Init::Kind::zeros: return ops(FillArgs{.out = out, .value = 0});
    case Init::Kind::ones: return ops(FillArgs{.out = out, .value = 1});
    case Init::Kind::normal: break;
  }
  const std::int64_t columns = part.global.rank == 2 ? part.global[1] : 1;
  ops(NormalArgs{.out = out,
                 .key = rng_stream(seed, part.name),
                 .std = spec.init.std,
                 .first = part.split == 0 ? part.begin * columns : part.begin,
                 .row_stride = columns});
}

void draw(Ops& ops, const ParamSpec& spec, std::uint64_t seed, const Tensor& full) {
  for (const auto& part : spec.parts) draw(ops, spec, part, seed, full);
}

// The ranges between parameters whose first gradient overwrites.
std::vector<Bucket::Range> cleared_ranges(const Bucket& bucket) {
  std::vector<Bucket::Range> ranges;
  std::int64_t end = 0;  // end of the last such parameter
  const auto add_up_to = [&](std::int64_t begin) {
    if (begin > end) ranges.push_back({end, begin});
  };
  for (const Param* param : bucket.params) {
    if (!param->spec.first_use_overwrites) continue;
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
void check_frozen(std::span<const std::string> patterns, const ParamSpec& spec) {
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
    if (matches(pattern, spec)) (spec.is_router_state() ? spec.frozen : spec.trainable) = spec.is_router_state();
  if (spec.is_router_state()) spec.trainable = false;
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
  for (const auto& param : params_) check_frozen(freeze_, param.spec);
}

void ParamStore::lay_out(const FlatRules& rules) {
  rules_ = rules;
  if (rules.global_model) check_freeze();
  make_buckets();
  ends_ = {};
  for (const bool expert : {false, true}) {
    for (auto& bucket : buckets_)
      if (bucket.expert == expert) number(bucket);
    if (!expert) dense_end_ = ends_.flat;
  }
  std::int64_t next = ends_.flat;
  for (auto& param : params_) {
    if (param.spec.trainable || param.spec.is_router_state()) continue;
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
// complete as early as possible. A tied embedding table has a bucket of its own, the same on both stages.
void ParamStore::make_buckets() {
  struct Filling {  // state of the bucket that takes parameters of a kind
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

// The order within a bucket: decayed parameters, others, and last those whose gradients are summed over replicas, so
// that one all-reduce can sum them all; each group in the order of adding.
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
  bucket.shards = rules_.shards.of(bucket.expert);
  const std::int64_t shards = bucket.shards.count, shard = align((next - bucket.begin + shards - 1) / shards);
  bucket.end = bucket.begin + shard * shards;
  bucket.keeps_weight = rules_.keep_weights || shards == 1;
  bucket.keeps_grad = rules_.keep_grads || shards == 1;
  const auto take = [](std::int64_t& end, std::int64_t elements) { return std::exchange(end, end + elements); };
  take(ends_.flat, bucket.elements());
  bucket.shard_begin = take(ends_.shards, shard);
  bucket.cleared = cleared_ranges(bucket);
  bucket.weight_begin = take(ends_.weights, bucket.keeps_weight ? bucket.elements() : shard);
  bucket.grad_begin = take(ends_.grads, bucket.keeps_grad ? bucket.elements() : shard);
}

void ParamStore::bind(const Memory& memory) {
  require(total_ > 0, "parameters are bound before they are laid out");
  const std::int64_t frozen = total_ - ends_.flat;
  const bool train = memory.grads != nullptr && ends_.flat > 0;
  const bool local_masters = train && compute_ != DType::f32;
  const Tensor weights = memory.weights.take(shape(ends_.weights + frozen), compute_, "weights");
  const Tensor grads = train ? memory.grads->take(shape(ends_.grads), DType::f32, "gradients") : Tensor{};
  const Tensor masters =
      local_masters ? memory.masters->take(shape(shard_elements()), DType::f32, "master weights") : Tensor{};
  for (auto& constant : constants_) constant.value = memory.constants.take(constant.shape, DType::f32, constant.name);

  for (auto& param : params_) {
    param.value = param.grad = param.master = {};
    if (param.spec.is_router_state())
      param.value = memory.weights.take(param.spec.shape, DType::f32, param.spec.name);
    else if (!param.spec.trainable)
      param.value = flat_range(weights, ends_.weights + param.offset - ends_.flat, param.spec.shape);
  }
  bind_buckets(weights, masters, grads);
  bind_buffers(memory, train);
  groups_.clear();
  if (train) make_groups();
}

void ParamStore::bind_buckets(const Tensor& weights, const Tensor& masters, const Tensor& grads) {
  for (auto& bucket : buckets_) {
    const auto local = [&](const Tensor& flat, std::int64_t begin, bool keeps_all) {
      if (keeps_all) begin += bucket.local_begin();
      return flat ? flat.rows(begin, begin + bucket.shard_size()) : Tensor{};
    };
    const auto all = [&](const Tensor& flat, std::int64_t begin, bool keeps_all) {
      return flat && keeps_all ? flat.rows(begin, begin + bucket.elements()) : Tensor{};
    };
    bucket.local_weight = local(weights, bucket.weight_begin, bucket.keeps_weight);
    bucket.local_grad = local(grads, bucket.grad_begin, bucket.keeps_grad);
    bucket.local_master = masters ? local(masters, bucket.shard_begin, false) : grads ? bucket.local_weight : Tensor{};
    place_weights(bucket, all(weights, bucket.weight_begin, bucket.keeps_weight));
    place_grads(bucket, all(grads, bucket.grad_begin, bucket.keeps_grad));
    if (bucket.shards.count > 1 || !grads) continue;
    for (Param* param : bucket.params)
      param->master = flat_range(bucket.local_master, param->offset - bucket.begin, param->spec.shape);
  }
}

// Buffers for a block's buckets, and one more for the prefetch of the next block's.
ParamStore::BufferCounts ParamStore::count_buffers(bool Bucket::*kept) const {
  BufferCounts counts;
  std::map<int, int> buckets_of_block;
  for (const auto& bucket : buckets_) {
    if (bucket.*kept) continue;
    counts.elements = std::max(counts.elements, bucket.elements());
    for (int block : bucket.blocks) counts.number = std::max(counts.number, ++buckets_of_block[block] + 1);
  }
  return counts;
}

void ParamStore::bind_buffers(const Memory& memory, bool train) {
  const BufferCounts weights = count_buffers(&Bucket::keeps_weight),
                     grads = train ? count_buffers(&Bucket::keeps_grad) : BufferCounts{};
  weight_buffers_.clear();
  grad_buffers_.clear();
  for (int i = 0; i < weights.number; ++i)
    weight_buffers_.push_back(memory.weights.take(shape(weights.elements), compute_, "fetched weights"));
  for (int i = 0; i < grads.number; ++i)
    grad_buffers_.push_back(memory.grads->take(shape(grads.elements), DType::f32, "gradients of a block"));
}

void ParamStore::place_weights(Bucket& bucket, const Tensor& full) {
  bucket.weight = full;
  for (Param* param : bucket.params)
    param->value = full ? flat_range(full, param->offset - bucket.begin, param->spec.shape) : Tensor{};
}

void ParamStore::place_grads(Bucket& bucket, const Tensor& full) {
  bucket.grad = full;
  for (Param* param : bucket.params)
    param->grad = full ? flat_range(full, param->offset - bucket.begin, param->spec.shape) : Tensor{};
}

void ParamStore::empty_grads(Ops& ops, Bucket& bucket) {
  for (const auto& [begin, end] : bucket.cleared) ops(FillArgs{.out = bucket.grad.rows(begin, end), .value = 0});
  for (Param* param : bucket.params) param->grad_empty = param->spec.first_use_overwrites;
}

void ParamStore::complete_grads(Ops& ops, Bucket& bucket) {
  for (Param* param : bucket.params)
    if (!param->accumulate_next()) ops(FillArgs{.out = param->grad, .value = 0});
}

void ParamStore::make_groups() {
  for (const auto& bucket : buckets_) {
    const std::int64_t shard = bucket.shard_size(), begin = bucket.begin + bucket.local_begin();
    const std::int64_t decayed = std::clamp(bucket.decayed_end - begin, std::int64_t{0}, shard);
    for (const auto& [from, to, decay] : {std::tuple{std::int64_t{0}, decayed, true}, {decayed, shard, false}}) {
      if (from == to) continue;
      const bool copied = compute_ != DType::f32;
      groups_.push_back({bucket.local_master.rows(from, to), bucket.local_grad.rows(from, to),
                         copied ? bucket.local_weight.rows(from, to) : Tensor{}, decay, bucket.shard_begin + from,
                         bucket.shard_begin + to});
    }
  }
}

void ParamStore::initialize(Ops& ops, std::uint64_t seed) {
  for (auto& param : params_) {
    if (param.spec.trainable && param.bucket >= 0 && buckets_[static_cast<std::size_t>(param.bucket)].local_grad)
      continue;
    ops(FillArgs{.out = param.value, .value = 0});
    draw(ops, param.spec, seed, param.value);
  }
  for (auto& bucket : buckets_)
    if (bucket.local_grad) initialize(ops, seed, bucket);
  fill_constants(ops);
}

// Draws the full bucket in fp32 in its gradient buffer, copies what this rank keeps out of it, and clears the buffer.
void ParamStore::initialize(Ops& ops, std::uint64_t seed, Bucket& bucket) {
  const Tensor buffer = bucket.grad ? bucket.grad : grad_buffers_.front().rows(0, bucket.elements());
  ops(FillArgs{.out = buffer, .value = 0});
  for (const Param* param : bucket.params)
    draw(ops, param->spec, seed, flat_range(buffer, param->offset - bucket.begin, param->spec.shape));
  const Tensor local = buffer.rows(bucket.local_begin(), bucket.local_end());
  ops(bucket.weight ? CopyArgs{.src = buffer, .dst = bucket.weight}
                    : CopyArgs{.src = local, .dst = bucket.local_weight});
  if (bucket.local_master.data != bucket.local_weight.data) ops(CopyArgs{.src = local, .dst = bucket.local_master});
  ops(FillArgs{.out = buffer, .value = 0});
  if (bucket.local_grad) ops(FillArgs{.out = bucket.local_grad, .value = 0});
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
  for (const auto& param : params_) n += param.spec.is_router_state() ? 0 : count(param.spec.shape);
  return n;
}

}  // namespace tera
