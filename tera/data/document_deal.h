#pragma once
// Which rank computes which documents in a step (dist.dynamic_context_parallel). Of every replica the C ranks that
// share sequences have room for C T rows in a microbatch. There a microbatch has a degree k, which divides C: each k
// neighbours are a block and share whole documents, of k T rows together. With C = 4, two microbatches of a replica:
//
//   rank             0         1         2         3
//   degree 4    │ a long document that fills all of them  │
//   degree 1    │ b c d   │ e f     │ g h i j │ k l     │      nothing is sent
//
// Documents go to the first block with room, longest first, in as few microbatches as hold them; one that is longer
// than T begins a microbatch of the smallest degree that holds it. Blocks of one degree are then dealt anew, so that
// those of one microbatch have as much to do; and where some still have more than others, blocks are joined, which
// costs what is sent then. Whole documents leave gaps. Where that costs more than it brings, as with sequences that are
// full to the last row, these stay whole, over all ranks, and are shared out so that no replica has more long documents
// than others. If that is no better either, sequences stay in order.
//
// Pure arithmetic, the same on every rank. Nothing is allocated while documents are no more than there was room for.

#include <cstdint>
#include <span>
#include <vector>

namespace tera {

// In any unit; for one rank.
struct DealCosts {
  double row = 1;   // of a row, whatever is beside it
  double pair = 0;  // of a query with a key that it sees
  double sent = 0;  // of a row whose keys come from another rank
};

struct DealOptions {
  std::int64_t rows = 0;             // T
  int ranks = 1, replicas = 1;       // C; and how many have such ranks
  std::vector<std::int64_t> counts;  // numbers of microbatches that a step may have, ascending
  DealCosts costs{};
  bool meets = false;         // all ranks wait for each other in every microbatch, not only at the end of a step
  std::size_t documents = 0;  // that there is room for at the start
};

// As it lies in the data.
struct DealtDocument {
  std::int32_t rows = 0;      // 1 to C T
  std::int64_t sequence = 0;  // microbatch * replicas + replica, if sequences were cut over all ranks, in order
};

class DocumentDeal {
 public:
  explicit DocumentDeal(DealOptions options);  // UserError never; wrong options are a mistake of the caller

  // microbatches: of the sequences as they are; one of the counts.
  void deal(std::span<const DealtDocument> documents, std::int64_t microbatches);

  // What came of it.
  std::int64_t microbatches() const { return microbatches_; }  // one of the counts
  bool as_they_are() const { return as_they_are_; }            // every sequence over all ranks, in order
  int degree(std::int64_t microbatch, int replica) const {
    return degrees_[static_cast<std::size_t>(microbatch * options_.replicas + replica)];
  }
  // Indices of the documents in the block of one of the C ranks, ascending.
  std::span<const std::int32_t> documents(std::int64_t microbatch, int replica, int rank) const;
  double padding() const { return padding_; }              // share of rows without a document
  double cost() const { return cost_; }                    // of the step
  double cost_as_they_are() const { return fixed_cost_; }  // and what it would have been
  const DealOptions& options() const { return options_; }

 private:
  struct Block {
    std::int32_t id = 0, degree = 1;
    double pairs = 0;  // of all its ranks
  };
  struct Slot {              // a microbatch of a replica
    std::int32_t first = 0;  // of blocks_
    int degree = 1, joined = 1;
    double cost = 0;
  };
  enum class Way : std::uint8_t {
    in_order,
    sequences,
    documents
  };  // as they are; whole, to other replicas; dealt anew
  void share_out_sequences(std::span<const DealtDocument> documents, std::int64_t microbatches);
  std::int64_t place_in_fewest(std::span<const DealtDocument> documents, std::int64_t rows);
  bool place(std::span<const DealtDocument> documents, std::int64_t slots);
  void arrange(std::span<const DealtDocument> documents, std::int64_t slots);
  void join_blocks(Slot& slot) const;
  void hand_out(const Slot& slot, std::int64_t microbatches);
  void keep_as_they_are(std::span<const DealtDocument> documents, std::int64_t microbatches);
  void hand_out_all();
  void count_pairs(std::span<const DealtDocument> documents, std::int64_t slots);
  double measure(std::span<const DealtDocument> documents, std::int64_t microbatches);
  void list_documents(std::size_t documents, std::int64_t microbatches);
  double slot_cost(double pairs_of_rank, int degree) const;
  std::int64_t first_with_room(std::int64_t rows) const;
  void set_room(std::int64_t block, std::int64_t rows);

  DealOptions options_;
  std::vector<int> all_degrees_;  // divisors of C, ascending
  std::int64_t microbatches_ = 0;
  bool as_they_are_ = true;
  double padding_ = 0, cost_ = 0, fixed_cost_ = 0;
  std::vector<int> degrees_;             // of each slot: microbatch * replicas + replica
  std::vector<std::int32_t> listed_;     // documents, block by block
  std::vector<std::int32_t> begins_;     // [slots C + 1]: of each block in listed_
  std::vector<std::int32_t> by_length_;  // documents, longest first
  std::vector<std::int32_t> block_of_;   // of each document: slot * C + number in it
  std::vector<std::int32_t> moved_to_;   // of each block while documents are placed, where it lies in the end
  std::vector<std::int64_t> room_;       // a tree: of each node the most room of a block below it
  std::int64_t leaves_ = 1;
  std::vector<Block> blocks_, parts_;  // of all slots while documents are placed; and of one, joined
  std::vector<std::int32_t> places_;   // among the ranks of a slot
  std::vector<std::int64_t> taken_;    // microbatches of each replica
  std::vector<Slot> slots_;
  std::vector<double> pairs_, rank_costs_;
};

}  // namespace tera
