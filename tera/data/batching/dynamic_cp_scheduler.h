#pragma once
// Dynamic context parallelism (dist.dynamic_context_parallel): assigns the documents of a step to microbatches and
// ranks. Of every replica the C context-parallel ranks have a capacity of C T rows in a microbatch. There a microbatch
// has a degree k, which divides C: each k neighbours are a block and share whole documents, of k T rows together. With
// C = 4, two microbatches of a replica:
//
//   rank             0         1         2         3
//   degree 4    │ a long document that fills all of them  │
//   degree 1    │ b c d   │ e f     │ g h i j │ k l     │      nothing is sent
//
// Packing is first-fit decreasing: documents go to the first block with free rows, longest first, in as few
// microbatches as hold them; one that is longer than T begins a microbatch of the smallest degree that holds it. Then
// blocks of one degree are regrouped, so that those of one microbatch have equal load; and where some still have more
// than others, blocks are joined, which costs what is sent then. Whole documents leave gaps. Where that costs more than
// it brings, as with sequences that are full to the last row, these stay whole, over all ranks, and are balanced over
// the replicas, so that none has more long documents than others. If that is no better either, the step keeps the
// static assignment: sequences over all ranks, in order.
//
// Pure arithmetic, the same on every rank. Nothing is allocated while there are no more documents than were reserved.

#include <cstdint>
#include <span>
#include <vector>

namespace tera {

// In any unit; for one rank.
struct DynamicCpCosts {
  double row = 1;   // cost of a row, without its attention
  double pair = 0;  // cost of a query with a key that it sees
  double sent = 0;  // cost of a row whose keys come from another rank
};

struct DynamicCpOptions {
  std::int64_t rows = 0;             // T
  int ranks = 1, replicas = 1;       // C ranks in each of the replicas
  std::vector<std::int64_t> counts;  // numbers of microbatches that a step may have, ascending
  DynamicCpCosts costs{};
  bool lockstep = false;      // all ranks wait for each other in every microbatch, not only at the end of a step
  std::size_t documents = 0;  // a capacity that is reserved at the start
};

// A document of the step as the data has it.
struct AssignedDocument {
  std::int32_t rows = 0;      // 1 to C T
  std::int64_t sequence = 0;  // microbatch * replicas + replica, if sequences were cut over all ranks, in order
};

class DynamicCpScheduler {
 public:
  explicit DynamicCpScheduler(DynamicCpOptions options);  // UserError never; wrong options are a mistake of the caller

  // microbatches: those of the static assignment; one of the counts.
  void assign(std::span<const AssignedDocument> documents, std::int64_t microbatches);

  // The assignment.
  std::int64_t microbatches() const { return microbatches_; }  // one of the counts
  bool is_static() const { return is_static_; }                // every sequence over all ranks, in order
  int degree(std::int64_t microbatch, int replica) const {
    return degrees_[static_cast<std::size_t>(microbatch * options_.replicas + replica)];
  }
  // Indices of the documents in the block of one of the C ranks, ascending.
  std::span<const std::int32_t> documents(std::int64_t microbatch, int replica, int rank) const;
  double padding() const { return padding_; }          // fraction of rows without a document
  double cost() const { return cost_; }                // cost of the step
  double static_cost() const { return static_cost_; }  // cost of the step, if its assignment were static
  const DynamicCpOptions& options() const { return options_; }

 private:
  struct Block {
    std::int32_t id = 0, degree = 1;
    double pairs = 0;  // sum over its ranks
  };
  struct Slot {              // a microbatch of a replica
    std::int32_t first = 0;  // first of its blocks in blocks_
    int degree = 1, joined = 1;
    double cost = 0;
  };
  enum class Policy : std::uint8_t {
    static_order,        // every sequence over all ranks, in order
    balanced_sequences,  // every sequence over all ranks, balanced over the replicas
    packed_documents     // documents packed into blocks
  };
  void balance_sequences(std::span<const AssignedDocument> documents, std::int64_t microbatches);
  std::int64_t pack_in_fewest(std::span<const AssignedDocument> documents, std::int64_t rows);
  bool pack(std::span<const AssignedDocument> documents, std::int64_t slots);
  void balance_blocks(std::span<const AssignedDocument> documents, std::int64_t slots);
  void join_blocks(Slot& slot) const;
  void assign_slot(const Slot& slot, std::int64_t microbatches);
  void assign_static(std::span<const AssignedDocument> documents, std::int64_t microbatches);
  void assign_slots();
  void count_pairs(std::span<const AssignedDocument> documents, std::int64_t slots);
  double measure(std::span<const AssignedDocument> documents, std::int64_t microbatches);
  void list_documents(std::size_t documents, std::int64_t microbatches);
  double slot_cost(double pairs_of_rank, int degree) const;
  std::int64_t first_fit(std::int64_t rows) const;
  void set_free_rows(std::int64_t block, std::int64_t rows);

  DynamicCpOptions options_;
  std::vector<int> all_degrees_;  // divisors of C, ascending
  std::int64_t microbatches_ = 0;
  bool is_static_ = true;
  double padding_ = 0, cost_ = 0, static_cost_ = 0;
  std::vector<int> degrees_;             // [slots], slot = microbatch * replicas + replica
  std::vector<std::int32_t> listed_;     // documents, block by block
  std::vector<std::int32_t> begins_;     // [slots C + 1]: of each block in listed_
  std::vector<std::int32_t> by_length_;  // documents, longest first
  std::vector<std::int32_t> block_of_;   // [documents]: slot * C + index in the slot
  std::vector<std::int32_t> moved_to_;   // [slots C]: the block that each block becomes while documents are packed
  std::vector<std::int64_t> free_rows_;  // a tree: of each node the most free rows of a block below it
  std::int64_t leaves_ = 1;
  std::vector<Block> blocks_;                // blocks of all slots while documents are packed
  std::vector<Block> joined_;                // joined blocks of one slot
  std::vector<std::int32_t> rank_blocks_;    // blocks of ranks of one slot, the one with the least load first
  std::vector<std::int64_t> replica_slots_;  // microbatches that each replica has so far
  std::vector<Slot> slots_;
  std::vector<double> pairs_, rank_costs_;
};

}  // namespace tera
