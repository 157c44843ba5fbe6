#include "tera/checkpoint/gather_weights.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "tera/base/error.h"
#include "tera/comm/agree.h"
#include "tera/models/build.h"
#include "tera/ops/ops.h"

namespace tera {
namespace {

constexpr std::size_t staging_bytes = std::size_t{4} << 20;

std::int64_t row_width(const Shape& shape) { return shape.rank == 2 ? shape[1] : 1; }

}  // namespace

std::vector<ModelTensor> list_tensors(const ParamStore& whole) {
  std::vector<ModelTensor> tensors;
  std::set<std::string> seen;
  for (const Param* param : whole.by_name())
    for (const Part& part : param->spec.parts)
      if (seen.insert(part.name).second) tensors.push_back({part.name, part.global, part.transposed});
  return tensors;
}

std::vector<ModelTensor> list_tensors(const ModelShape& model) {
  ParamStore whole(DType::f32);
  build_blocks(make_spec(model, 0), whole);
  whole.lay_out();
  return list_tensors(whole);
}

GatherWeights::GatherWeights(const ParamStore& params, Ops& ops) : ops_(ops), tensors_(list_tensors(params)) {
  find_pieces(params);
}

GatherWeights::GatherWeights(const ParamStore& params, Ops& ops, const Ranks& ranks)
    : ops_(ops), first_replica_(ranks.first_replica), tensors_(list_tensors(ranks.model)) {
  find_pieces(params);
  if (ranks.world.size() == 1) return;
  world_ = &ranks.world;
  staging_ = ranks.device.allocate(staging_bytes);
  const std::vector<std::int64_t> counts =
      gather_numbers(*world_, ops_, ranks.device, static_cast<std::int64_t>(own_.size()));
  if (first())
    for (const std::int64_t pieces : counts) others_.emplace_back(static_cast<std::size_t>(pieces));
  tell_pieces();
}

void GatherWeights::find_pieces(const ParamStore& params) {
  std::map<std::string, std::int64_t> numbers;
  for (const ModelTensor& tensor : tensors_) numbers.emplace(tensor.name, std::ssize(numbers));
  for (const Param* param : params.by_name()) {
    if (param->spec.counted_elsewhere) continue;
    for (const Part& part : param->spec.parts) {
      const auto number = numbers.find(part.name);
      if (number == numbers.end()) fail("'{}' is not a tensor of the model", part.name);
      if (part.replica == 0) add_piece(params, *param, part, number->second);
    }
  }
  std::stable_sort(own_.begin(), own_.end(),
                   [](const OwnPiece& a, const OwnPiece& b) { return a.where.tensor < b.where.tensor; });
}

// Where masters are shared, a part lies across the shares of several ranks.
void GatherWeights::add_piece(const ParamStore& params, const Param& param, const Part& part, std::int64_t tensor) {
  Piece piece{.tensor = tensor,
              .split = part.split,
              .begin = part.begin,
              .end = part.stop(),
              .from = 0,
              .to = count(part.held())};
  if (piece.to == 0) return;
  if (params.rules().shares == 1 || !param.spec.trainable) {
    const Tensor rows = part_rows(param.master ? param.master : param.value, part);
    if (first_replica_) own_.push_back({piece, rows.view(shape(piece.to))});
    return;
  }
  const Bucket& bucket = params.buckets()[static_cast<std::size_t>(param.bucket)];
  const std::int64_t share = bucket.elements() / params.rules().shares;
  const std::int64_t share_begin = bucket.begin + params.rules().share * share;
  const std::int64_t first = param.offset + part.local_row * row_width(param.spec.shape);  // in the flat numbering
  const std::int64_t begin = std::max(first, share_begin), end = std::min(first + piece.to, share_begin + share);
  if (begin >= end) return;
  piece.from = begin - first;
  piece.to = end - first;
  own_.push_back({piece, bucket.own_master.rows(begin - share_begin, end - share_begin)});
}

// The first rank learns what it will get, and from whom.
void GatherWeights::tell_pieces() {
  constexpr std::size_t at_a_time = staging_bytes / sizeof(Piece);
  const auto room = [&](std::size_t pieces) {
    return make_tensor(staging_.data(), shape(static_cast<std::int64_t>(pieces * sizeof(Piece) / 8)), DType::i64);
  };
  if (!first()) {
    std::vector<Piece> pieces;
    for (const OwnPiece& own : own_) pieces.push_back(own.where);
    for (std::size_t begin = 0; begin < pieces.size(); begin += at_a_time) {
      const auto some = std::span(pieces).subspan(begin, std::min(at_a_time, pieces.size() - begin));
      ops_.from_host(std::as_bytes(some), room(some.size()));
      ops_.finish(world_->exchange(std::array{Transfer{room(some.size()), 0, true}}, ops_.record()));
    }
    return;
  }
  for (int rank = 1; rank < world_->size(); ++rank) {
    std::vector<Piece>& pieces = others_[static_cast<std::size_t>(rank)];
    for (std::size_t begin = 0; begin < pieces.size(); begin += at_a_time) {
      const auto some = std::span(pieces).subspan(begin, std::min(at_a_time, pieces.size() - begin));
      ops_.wait(world_->exchange(std::array{Transfer{room(some.size()), rank, false}}, ops_.record()));
      ops_.to_host(room(some.size()), std::as_writable_bytes(some));
    }
  }
}

// Writes values, which begin at `from` of the piece's range, to their places; returns how many there are.
std::int64_t GatherWeights::place(const Piece& piece, std::int64_t from, std::span<const float> values,
                                  std::span<float> whole) const {
  const Shape& shape = tensors_[static_cast<std::size_t>(piece.tensor)].shape;
  const std::int64_t columns = row_width(shape), width = piece.split == 1 ? piece.end - piece.begin : columns;
  const std::int64_t first_row = piece.split == 0 ? piece.begin : 0, first_column = piece.split == 1 ? piece.begin : 0;
  const std::int64_t end = from + std::ssize(values);
  for (std::int64_t at = from; at < end;) {
    const std::int64_t row = at / width, column = at % width, n = std::min(width - column, end - at);
    std::copy_n(values.begin() + (at - from), n, whole.begin() + (first_row + row) * columns + first_column + column);
    at += n;
  }
  return std::ssize(values);
}

std::int64_t GatherWeights::receive(int rank, const Piece& piece, std::span<float> whole) {
  constexpr std::int64_t at_a_time = staging_bytes / sizeof(float);
  std::vector<float> values;
  for (std::int64_t from = piece.from; from < piece.to; from += at_a_time) {
    const std::int64_t n = std::min(at_a_time, piece.to - from);
    const Tensor room = make_tensor(staging_.data(), shape(n), DType::f32);
    ops_.wait(world_->exchange(std::array{Transfer{room, rank, false}}, ops_.record()));
    values.resize(static_cast<std::size_t>(n));
    ops_.to_host(room, std::as_writable_bytes(std::span(values)));
    place(piece, from, values, whole);
  }
  return piece.to - piece.from;
}

void GatherWeights::send_to_first(const OwnPiece& own) {
  constexpr std::int64_t at_a_time = staging_bytes / sizeof(float);
  const std::int64_t elements = own.where.to - own.where.from;
  for (std::int64_t begin = 0; begin < elements; begin += at_a_time) {
    const std::int64_t end = std::min(begin + at_a_time, elements);
    const Tensor room = make_tensor(staging_.data(), shape(end - begin), DType::f32);
    ops_.copy({.src = own.source.rows(begin, end), .dst = room});
    ops_.wait(world_->exchange(std::array{Transfer{room, 0, true}}, ops_.record()));
  }
}

void GatherWeights::each(Take take) {
  if (!first()) {
    for (const OwnPiece& own : own_) send_to_first(own);
    return;
  }
  std::vector<float> whole;
  auto own = own_.begin();
  std::vector<std::size_t> next(others_.size(), 0);
  for (std::int64_t tensor = 0; tensor < std::ssize(tensors_); ++tensor) {
    const ModelTensor& wanted = tensors_[static_cast<std::size_t>(tensor)];
    const std::int64_t elements = count(wanted.shape);
    whole.resize(static_cast<std::size_t>(elements));
    std::int64_t placed = 0;
    for (; own != own_.end() && own->where.tensor == tensor; ++own)
      placed += place(own->where, own->where.from, download(ops_, own->source), whole);
    for (std::size_t rank = 1; rank < others_.size(); ++rank)
      for (const auto& pieces = others_[rank]; next[rank] < pieces.size() && pieces[next[rank]].tensor == tensor;)
        placed += receive(static_cast<int>(rank), pieces[next[rank]++], whole);
    require(placed == elements, "of the {} elements of '{}' the ranks hold {}", elements, wanted.name, placed);
    take(wanted, whole);
  }
}

}  // namespace tera
