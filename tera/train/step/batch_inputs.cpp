#include "tera/train/step/batch_inputs.h"

#include <algorithm>
#include <array>

#include "tera/base/error.h"

namespace tera {
namespace {

// One of the tables over the rows of all context-parallel ranks.
struct GlobalField {
  struct Needs {
    CpCommType comm;
    bool packed, draws;
    bool ring() const { return comm == CpCommType::p2p; }
  };
  Tensor GlobalRows::*table;
  DType dtype;
  bool of_microbatch;  // follows from its row ids; the others are the same for all, unless documents are packed
  bool (*needed)(const Needs&);
  std::span<const std::byte> (*on_host)(const BatchSpans&, const ContextParallelSplit&);
  bool per_document = false;  // [ranks (documents+1)] instead of all rows
};

using Needs = GlobalField::Needs;
using Split = ContextParallelSplit;
using Host = BatchSpans;

// What ring attention, the all-gather and Ulysses (all-to-all) each need.
constexpr std::array global_fields{
    GlobalField{
        &GlobalRows::rows, DType::i64, true, [](const Needs& n) { return n.draws && !n.ring(); },
        [](const Host& host, const Split&) { return std::as_bytes(std::span<const std::int64_t>(host.row_ids)); }},
    GlobalField{&GlobalRows::cp_order, DType::i32, false, [](const Needs& n) { return !n.ring(); },
                [](const Host&, const Split& split) { return std::as_bytes(split.cp_order()); }},
    GlobalField{&GlobalRows::cp_order_rows, DType::i32, false, [](const Needs& n) { return !n.ring(); },
                [](const Host&, const Split& split) { return std::as_bytes(split.cp_order_rows()); }},
    GlobalField{&GlobalRows::positions, DType::i32, false,
                [](const Needs& n) { return n.comm == CpCommType::all_gather; },
                [](const Host&, const Split& split) { return std::as_bytes(split.positions()); }},
    GlobalField{&GlobalRows::cp_order_positions, DType::i32, false,
                [](const Needs& n) { return n.comm != CpCommType::a2a; },
                [](const Host&, const Split& split) { return std::as_bytes(split.cp_order_positions()); }},
    GlobalField{&GlobalRows::cp_order_row_ids, DType::i64, true, [](const Needs& n) { return n.draws && n.ring(); },
                [](const Host&, const Split& split) { return std::as_bytes(split.cp_order_row_ids()); }},
    GlobalField{&GlobalRows::cp_order_offsets, DType::i32, false,
                [](const Needs& n) { return n.packed && n.comm != CpCommType::a2a; },
                [](const Host&, const Split& split) { return std::as_bytes(split.cp_order_offsets()); }, true},
};

std::int64_t all_rows(const Setup& setup) { return setup.batch.micro_batch * setup.batch.seq_length; }

}  // namespace

std::int64_t rows_of_rank(const Setup& setup) { return all_rows(setup) / setup.parallel.mesh.cp; }

void BatchInputs::bind(Arena& arena) {
  capacity_.clear();
  training_.clear();
  evaluation_.clear();
  const GlobalRows shared = setup_.batch.packs_documents ? GlobalRows{} : take_global_rows(arena, false);
  for (std::int64_t i = 0; i < setup_.batch.largest_step(); ++i) {
    MicroBatch batch = capacity_.emplace_back(take(arena, shared));
    batch.training = true;
    training_.push_back(batch);
    batch.training = false;
    if (i < setup_.batch.num_microbatches) evaluation_.push_back(batch);
  }
}

// Only ranks with a loss, which have the MTP layers, read the rows of MTP depths.
MicroBatch BatchInputs::take(Arena& arena, const GlobalRows& shared) const {
  const BatchSizes sizes{.rows = rows_of_rank(setup_),
                         .mtp_depths = layout_.has_loss ? setup_.model.mtp_layers : 0,
                         .packed = setup_.batch.packs_documents,
                         .all_rows = all_rows(setup_)};
  MicroBatch batch;
  batch.batch = setup_.batch.micro_batch;
  batch.all = shared;
  for_each_batch_field([&](const auto& field) {
    const std::int64_t elements = sizes.elements(field.per, field.split);
    if (elements == 0) return;
    const bool by_depth = field.per == PerField::mtp_row;
    batch.*field.device = arena.take(by_depth ? shape(sizes.mtp_depths, elements / sizes.mtp_depths) : shape(elements),
                                     field.dtype, field.name);
  });
  const auto add = [&](const GlobalRows& taken) {
    for (const GlobalField& field : global_fields)
      if (taken.*field.table) batch.all.*field.table = taken.*field.table;
  };
  if (setup_.batch.packs_documents) add(take_global_rows(arena, false));
  add(take_global_rows(arena, true));
  return batch;
}

GlobalRows BatchInputs::take_global_rows(Arena& arena, bool of_microbatch) const {
  GlobalRows all;
  if (layout_.cp.size() == 1) return all;
  const Needs needs{layout_.cp.comm, setup_.batch.packs_documents, setup_.model.attention_dropout > 0};
  for (const GlobalField& field : global_fields) {
    if (field.of_microbatch != of_microbatch || !field.needed(needs)) continue;
    const std::int64_t rows = all_rows(setup_);
    all.*field.table = arena.take(shape(field.per_document ? layout_.cp.size() * (rows + 1) : rows), field.dtype,
                                  of_microbatch ? "row ids of all ranks" : "rows of context ranks");
  }
  return all;
}

void BatchInputs::attach(const StepFeatures& features) {
  for (auto* batches : {&training_, &evaluation_})
    for (std::size_t i = 0; i < batches->size(); ++i)
      features.each([&](StepFeature& feature) { feature.attach(static_cast<std::int64_t>(i), (*batches)[i]); });
}

void BatchInputs::make_splits() {
  splits_.clear();
  for (const ContextParallel& ranks : layout_.degrees) {
    const bool all = ranks.size() == layout_.cp.size();
    splits_.emplace_back(
        ContextParallelSplit::Options{.sequences = all ? setup_.batch.micro_batch : 1,
                                      .seq_length = all ? setup_.batch.seq_length : ranks.size() * rows_of_rank(setup_),
                                      .ranks = ranks.size(),
                                      .rank = ranks.rank(),
                                      .packed = setup_.batch.packs_documents,
                                      .mtp_depths = setup_.model.mtp_layers});
  }
}

BatchSpans BatchInputs::load(Ops& ops, std::int64_t index, const BatchSpans& host) {
  const auto i = static_cast<std::size_t>(index);
  const MicroBatch& batch = training_.at(i);
  const std::int64_t shared = std::ssize(host.tokens) / rows_of_rank(setup_);
  const auto found = std::ranges::find(layout_.degrees, shared, &ContextParallel::size);
  require(found != layout_.degrees.end(), "a microbatch of {} rows, of which each rank has {}", host.tokens.size(),
          rows_of_rank(setup_));
  require(static_cast<bool>(batch.offsets) == !host.offsets.empty(), "a microbatch of {} offsets of documents",
          host.offsets.size());
  const auto degree = static_cast<std::size_t>(found - layout_.degrees.begin());
  if (batch.offsets) set_documents(i, degree, std::ssize(host.offsets) - 1);
  const BatchSpans local = splits_[degree].local_rows(host);
  for_each_batch_field([&](const auto& field) {
    const Tensor& to = batch.*field.device;
    const bool left_out = field.per == PerField::mtp_row && (local.*field.host).empty();  // in evaluation
    if (to && !left_out) ops.from_host(std::as_bytes(local.*field.host), to);
  });
  for (const GlobalField& field : global_fields)
    if (const Tensor& to = batch.all.*field.table) ops.from_host(field.on_host(host, splits_[degree]), to);
  return local;
}

void BatchInputs::set_degree(std::size_t degree) {
  const std::int64_t max_documents = layout_.degrees[degree].size() * rows_of_rank(setup_);
  for (std::size_t i = 0; i < capacity_.size(); ++i) set_documents(i, degree, max_documents);
}

// Packed documents: the microbatch sees the part of its inputs that so many documents take, in rows that the ranks of
// a dynamic-CP degree share.
void BatchInputs::set_documents(std::size_t index, std::size_t degree, std::int64_t documents) {
  const MicroBatch& capacity = capacity_[index];
  const ContextParallel& cp = layout_.degrees[degree];
  GlobalRows all;
  for (const GlobalField& field : global_fields) {
    const Tensor& of_all = capacity.all.*field.table;
    const std::int64_t rows = field.per_document ? cp.size() * (documents + 1) : cp.size() * rows_of_rank(setup_);
    if (of_all && cp.size() > 1) all.*field.table = of_all.rows(0, rows);
  }
  const auto set = [&](MicroBatch& batch) {
    batch.offsets = capacity.offsets.rows(0, documents + 1);
    batch.all = all;
    batch.cp = &cp;
  };
  set(training_[index]);
  if (index < evaluation_.size()) set(evaluation_[index]);
}

}  // namespace tera
