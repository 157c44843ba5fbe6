#include "tera/checkpoint/model_state.h"

#include <algorithm>
#include <optional>

#include "tera/base/error.h"
#include "tera/models/build.h"

namespace tera {
namespace {

std::int64_t width_of(const Param& param) { return count(param.spec.shape) / param.spec.shape[0]; }

// Trained rows of vocabulary padding, which follow the last part.
std::optional<Part> padding_of(const ParamSpec& spec) {
  if (!spec.init.padding || spec.parts.size() != 1) return std::nullopt;
  const Part& part = spec.parts[0];
  const std::int64_t local_rows = part.local_shape()[0], rows = spec.shape[0] - local_rows;
  if (rows == 0) return std::nullopt;
  Part padding = part;
  padding.name += ".vocab_padding";
  padding.local_row = part.local_row + local_rows;
  padding.begin = part.begin + local_rows - part.global[0];
  padding.end = padding.begin + rows;
  padding.global[0] = padding.end;  // the rows that this rank knows of
  return padding;
}

void list(const ParamSpec& spec, const Part& part, bool padding, std::vector<ModelTensor>& tensors) {
  tensors.push_back({.name = part.name,
                     .shape = part.global,
                     .transposed = part.transposed,
                     .trained = spec.trainable,
                     .padding = padding,
                     .router_state = spec.is_router_state(),
                     .in_files = !padding && spec.counts != ParamSpec::Counts::shares});
}

}  // namespace

// The part of a replicated range that a replica writes.
ModelState::Range ModelState::cut(Range range, const Replica& replica) {
  const std::int64_t piece = (range.end - range.begin + replica.count - 1) / replica.count,
                     first = std::min(range.begin + piece * replica.index, range.end);
  return {first, std::min(first + piece, range.end)};
}

ModelState::Range ModelState::intersect(Range a, Range b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

TensorSlice ModelState::Located::cut(Range range) const {
  TensorSlice some = slice;
  some.from = range.begin - first;
  some.to = range.end - first;
  return some;
}

std::vector<ModelTensor> list_tensors(const ParamStore& full) {
  std::vector<ModelTensor> tensors;
  for (const Param* param : full.by_name()) {
    for (const Part& part : param->spec.parts) list(param->spec, part, false, tensors);
    if (const auto padding = padding_of(param->spec)) list(param->spec, *padding, true, tensors);
  }
  std::ranges::sort(tensors, {}, &ModelTensor::name);
  const auto same = std::ranges::unique(tensors, {}, &ModelTensor::name);
  tensors.erase(same.begin(), same.end());
  return tensors;
}

std::vector<ModelTensor> list_tensors(const ModelShape& model) {
  ParamStore full(DType::f32, model.freeze);
  build_blocks(make_spec(model, 0), full);
  full.lay_out();
  return list_tensors(full);
}

ModelState::ModelState(std::vector<ModelTensor> model, const ParamStore& params, const Optimizer* optimizer)
    : weights_(std::move(model)), params_(params) {
  list_kinds(optimizer);
  for (const Kind& kind : kinds_) {
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const bool has = weights_[i].trained || !kind.trained_only;
      numbers_.push_back(has ? std::ssize(tensors_) : -1);
      const DType dtype = weights_[i].router_state ? DType::f32 : kind.dtype;
      if (has) tensors_.push_back({kind.prefix + weights_[i].name, weights_[i].shape, dtype, i});
    }
  }
}

void ModelState::list_kinds(const Optimizer* optimizer) {
  kinds_.push_back({"", params_.compute(), false, {}});
  const bool masters = std::ranges::any_of(params_.buckets(), [](const Bucket& each) { return !!each.local_master; });
  if (params_.compute() != DType::f32 && (optimizer || masters))
    kinds_.push_back({"optimizer.master.", DType::f32, true, {}});
  if (!optimizer) return;
  for (const Optimizer::Moment& moment : optimizer->moments())
    kinds_.push_back({"optimizer." + moment.name + ".", moment.dtype, true, moment.values});
}

std::vector<StatePiece> ModelState::kept() const { return find(nullptr); }

std::vector<StatePiece> ModelState::written(const Replicas& replicas) const { return find(&replicas); }

std::vector<StatePiece> ModelState::find(const Replicas* writers) const {
  std::vector<StatePiece> pieces;
  for (const Param* param : params_.by_name()) {
    const Replica* writer = writers ? &writers->of(param->spec.expert) : nullptr;
    if (writer && param->spec.norm_counted_elsewhere) continue;
    for (const Part& part : param->spec.parts) add_part(pieces, *param, part, writer);
    if (const auto padding = padding_of(param->spec)) add_part(pieces, *param, *padding, writer);
  }
  return pieces;
}

ModelState::Range ModelState::trained(bool expert) const {
  return expert ? Range{params_.dense_end(), params_.trained_elements()} : Range{0, params_.dense_end()};
}

void ModelState::add_part(std::vector<StatePiece>& pieces, const Param& param, const Part& part,
                          const Replica* writer) const {
  const auto weight = std::ranges::lower_bound(weights_, part.name, {}, &ModelTensor::name);
  if (weight == weights_.end() || weight->name != part.name) fail("'{}' is not a tensor of the model", part.name);
  const std::int64_t first = param.offset + part.local_row * width_of(param);
  const Located located{static_cast<std::size_t>(weight - weights_.begin()), slice_of(part), first};
  const Range all{first, first + located.slice.elements()};
  if (located.slice.elements() == 0 || (writer && part.replica != 0)) return;
  if (!param.spec.trainable) {
    add_frozen(pieces, param, located, writer ? cut(all, *writer) : all);
  } else if (writer && params_.rules().shards.of(param.spec.expert).count == 1) {
    // Replicas split the flat range of all parameters of a kind, so that few tensors are stored in two files.
    add_trained(pieces, param, located, intersect(all, cut(trained(param.spec.expert), *writer)));
  } else {
    add_trained(pieces, param, located, all);
  }
}

void ModelState::add_frozen(std::vector<StatePiece>& pieces, const Param& param, const Located& located,
                            Range range) const {
  if (range.begin >= range.end) return;
  const Tensor flat = param.value.view(shape(count(param.spec.shape)));
  pieces.push_back({static_cast<std::size_t>(numbers_[located.weight]), located.cut(range),
                    flat.rows(range.begin - param.offset, range.end - param.offset)});
}

// Adds the intersection of the range with this rank's shard of the bucket, for weights, masters and moments.
void ModelState::add_trained(std::vector<StatePiece>& pieces, const Param& param, const Located& located,
                             Range range) const {
  const Bucket& bucket = params_.buckets()[static_cast<std::size_t>(param.bucket)];
  const std::int64_t shard_begin = bucket.begin + bucket.local_begin();
  range = intersect(range, {shard_begin, shard_begin + bucket.shard_size()});
  if (range.begin >= range.end) return;
  const std::int64_t begin = range.begin - shard_begin, end = range.end - shard_begin;
  for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
    const Kind& each = kinds_[kind];
    const std::int64_t number = numbers_[kind * weights_.size() + located.weight];
    const Tensor data = each.moment ? each.moment.rows(bucket.shard_begin + begin, bucket.shard_begin + end)
                        : kind == 0 ? bucket.local_weight.rows(begin, end)
                                    : bucket.local_master.rows(begin, end);
    pieces.push_back({static_cast<std::size_t>(number), located.cut(range), data});
  }
}

}  // namespace tera
