#pragma once
// The inputs of a rank's microbatches on the device: allocated, split over context-parallel ranks and uploaded by the
// list of batch_fields.h, and beside them the tables of other ranks' rows that attention needs under context
// parallelism. With packed documents a microbatch sees the part of its inputs that so many documents take.

#include <span>
#include <vector>

#include "tera/config/setup.h"
#include "tera/data/batching/context_split.h"
#include "tera/train/rank_layout.h"
#include "tera/train/step/step_feature.h"

namespace tera {

std::int64_t rows_of_rank(const Setup& setup);  // rows of a microbatch on one context-parallel rank

class BatchInputs {
 public:
  BatchInputs(const Setup& setup, const RankLayout& layout) : setup_(setup), layout_(layout) {}  // both outlive it

  void bind(Arena& arena);
  void attach(const StepFeatures& features);  // after bind() of all
  // The host memory of splits, for all rows of a microbatch; made only when the plan is known to fit.
  void make_splits();

  // Uploads this rank's part of a microbatch, and returns it; valid until the next call. The number of rows tells the
  // degree of dynamic context parallelism.
  BatchSpans load(Ops& ops, std::int64_t index, const BatchSpans& host);
  // For a rehearsal: all microbatches have this dynamic-CP degree, and as many documents as possible.
  void set_degree(std::size_t degree);

  std::span<const MicroBatch> training(std::int64_t microbatches) const {
    return std::span(training_).first(static_cast<std::size_t>(microbatches));
  }
  std::span<const MicroBatch> evaluation() const { return evaluation_; }

 private:
  MicroBatch take(Arena& arena, const GlobalRows& shared) const;
  GlobalRows take_global_rows(Arena& arena, bool of_microbatch) const;
  void set_documents(std::size_t index, std::size_t degree, std::int64_t documents);

  const Setup& setup_;
  const RankLayout& layout_;
  std::vector<ContextParallelSplit> splits_;       // one for each of layout_.degrees
  std::vector<MicroBatch> capacity_;               // inputs for the maximum number of documents
  std::vector<MicroBatch> training_, evaluation_;  // inputs as blocks see them
};

}  // namespace tera
