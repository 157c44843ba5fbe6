#include "tera/data/batching/dynamic_cp_scheduler.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>
#include <utility>

#include "tera/base/error.h"

namespace tera {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

double pairs_of(std::int64_t rows) { return static_cast<double>(rows) * static_cast<double>(rows + 1) / 2; }

// Pairs the blocks of a slot, which are sorted by load: the first beside the last, the second beside the last but one,
// so that neighbours have equal load.
std::int64_t paired_index(std::int64_t j, std::int64_t blocks) { return j % 2 == 0 ? j / 2 : blocks - 1 - j / 2; }

}  // namespace

DynamicCpScheduler::DynamicCpScheduler(DynamicCpOptions options) : options_(std::move(options)) {
  require(options_.rows > 0 && options_.ranks > 0 && options_.replicas > 0 && !options_.counts.empty() &&
              options_.counts.front() > 0 && std::ranges::is_sorted(options_.counts),
          "documents over {} replicas of {} ranks with {} rows, in {} numbers of microbatches", options_.replicas,
          options_.ranks, options_.rows, options_.counts.size());
  for (int degree = 1; degree <= options_.ranks; ++degree)
    if (options_.ranks % degree == 0) all_degrees_.push_back(degree);
  const std::int64_t slots = options_.counts.back() * options_.replicas, blocks = slots * options_.ranks;
  for (auto* of_documents : {&listed_, &by_length_, &block_of_}) of_documents->reserve(options_.documents);
  degrees_.reserve(at(slots));
  slots_.reserve(at(slots));
  begins_.reserve(at(blocks + 1));
  moved_to_.reserve(at(blocks));
  blocks_.reserve(at(blocks));
  pairs_.reserve(at(blocks));
  rank_costs_.reserve(at(std::int64_t{options_.replicas} * options_.ranks));
  replica_slots_.reserve(at(options_.replicas));
  joined_.reserve(at(options_.ranks));
  rank_blocks_.reserve(at(options_.ranks));
  free_rows_.reserve(2 * std::bit_ceil(at(blocks)));
}

void DynamicCpScheduler::assign(std::span<const AssignedDocument> documents, std::int64_t microbatches) {
  const std::int64_t capacity = options_.rows * options_.ranks;  // rows of a microbatch of a replica
  std::int64_t rows = 0;
  for (const AssignedDocument& document : documents) {
    require(document.rows > 0 && document.rows <= capacity && document.sequence >= 0 &&
                document.sequence < microbatches * options_.replicas,
            "a document of {} rows in sequence {}, where {} rows are dealt at a time", document.rows, document.sequence,
            capacity);
    rows += document.rows;
  }
  require(documents.size() <= 0x7fffffff && std::ranges::binary_search(options_.counts, microbatches),
          "{} documents in {} microbatches", documents.size(), microbatches);
  microbatches_ = microbatches;
  assign_static(documents, microbatches);
  static_cost_ = cost_ = measure(documents, microbatches);
  Policy best = Policy::static_order;
  const auto compare = [&](Policy policy, std::int64_t count) {
    const double cost = measure(documents, count);
    if (!(cost < cost_)) return;
    best = policy;
    cost_ = cost;
    microbatches_ = count;
  };
  if (options_.replicas > 1) {
    balance_sequences(documents, microbatches);
    compare(Policy::balanced_sequences, microbatches);
  }
  if (const std::int64_t count = pack_in_fewest(documents, rows); count > 0) {
    balance_blocks(documents, count * options_.replicas);
    compare(Policy::packed_documents, count);
  }
  is_static_ = best == Policy::static_order;
  if (best == Policy::static_order) assign_static(documents, microbatches);
  if (best == Policy::balanced_sequences) balance_sequences(documents, microbatches);
  list_documents(documents.size(), microbatches_);
  const auto all_rows = static_cast<double>(microbatches_ * options_.replicas * capacity);
  padding_ = 1 - static_cast<double>(rows) / all_rows;
}

std::span<const std::int32_t> DynamicCpScheduler::documents(std::int64_t microbatch, int replica, int rank) const {
  const std::int64_t block =
      (microbatch * options_.replicas + replica) * options_.ranks + rank / degree(microbatch, replica);
  const std::int32_t begin = begins_[at(block)], end = begins_[at(block + 1)];
  return std::span(listed_).subspan(at(begin), at(end - begin));
}

void DynamicCpScheduler::assign_static(std::span<const AssignedDocument> documents, std::int64_t microbatches) {
  degrees_.assign(at(microbatches * options_.replicas), options_.ranks);
  block_of_.resize(documents.size());
  for (std::size_t i = 0; i < documents.size(); ++i)
    block_of_[i] = static_cast<std::int32_t>(documents[i].sequence * options_.ranks);
}

// Sequences stay whole, over all ranks; only the replica and the microbatch of each changes. So there are no gaps, and
// no sequence with long documents has to wait for another.
void DynamicCpScheduler::balance_sequences(std::span<const AssignedDocument> documents, std::int64_t microbatches) {
  const std::int64_t ranks = options_.ranks, slots = microbatches * options_.replicas;
  assign_static(documents, microbatches);
  count_pairs(documents, slots);
  blocks_.clear();
  slots_.clear();
  for (std::int64_t i = 0; i < slots; ++i) {
    const double pairs = pairs_[at(i * ranks)];
    blocks_.push_back({static_cast<std::int32_t>(i * ranks), options_.ranks, pairs});
    slots_.push_back({.first = static_cast<std::int32_t>(i),
                      .degree = options_.ranks,
                      .cost = slot_cost(pairs / static_cast<double>(ranks), options_.ranks)});
  }
  assign_slots();
}

// Packs all documents, which have so many rows, into as few microbatches as hold them, and returns how many these are,
// or 0 if no count is enough.
std::int64_t DynamicCpScheduler::pack_in_fewest(std::span<const AssignedDocument> documents, std::int64_t rows) {
  by_length_.resize(documents.size());
  std::iota(by_length_.begin(), by_length_.end(), 0);
  std::ranges::sort(by_length_, [&](std::int32_t a, std::int32_t b) {
    return std::tuple(-documents[at(a)].rows, a) < std::tuple(-documents[at(b)].rows, b);
  });
  for (const std::int64_t count : options_.counts) {
    const std::int64_t slots = count * options_.replicas;
    if (slots * options_.ranks * options_.rows >= rows && pack(documents, slots)) return count;
  }
  return 0;
}

// The first block with so many free rows, or -1.
std::int64_t DynamicCpScheduler::first_fit(std::int64_t rows) const {
  if (free_rows_[1] < rows) return -1;
  std::int64_t node = 1;
  while (node < leaves_) node = free_rows_[at(2 * node)] >= rows ? 2 * node : 2 * node + 1;
  return node - leaves_;
}

void DynamicCpScheduler::set_free_rows(std::int64_t block, std::int64_t rows) {
  std::int64_t node = leaves_ + block;
  free_rows_[at(node)] = rows;
  for (node /= 2; node > 0; node /= 2)
    free_rows_[at(node)] = std::max(free_rows_[at(2 * node)], free_rows_[at(2 * node + 1)]);
}

// First-fit decreasing: puts every document into a block of some slot; false where the slots do not hold all.
bool DynamicCpScheduler::pack(std::span<const AssignedDocument> documents, std::int64_t slots) {
  const std::int64_t ranks = options_.ranks;
  leaves_ = static_cast<std::int64_t>(std::bit_ceil(at(slots * ranks)));
  free_rows_.assign(at(2 * leaves_), 0);
  degrees_.clear();
  const auto open = [&](int degree) {
    const std::int64_t slot = std::ssize(degrees_);
    degrees_.push_back(degree);
    for (std::int64_t block = 0; block < ranks / degree; ++block)
      set_free_rows(slot * ranks + block, degree * options_.rows);
  };
  for (const std::int32_t i : by_length_) {
    const std::int64_t rows = documents[at(i)].rows;
    if (free_rows_[1] < rows) {
      if (std::ssize(degrees_) == slots) return false;
      open(*std::ranges::find_if(all_degrees_, [&](int degree) { return degree * options_.rows >= rows; }));
    }
    const std::int64_t block = first_fit(rows);
    block_of_[at(i)] = static_cast<std::int32_t>(block);
    set_free_rows(block, free_rows_[at(leaves_ + block)] - rows);
  }
  while (std::ssize(degrees_) < slots) open(1);
  return true;
}

double DynamicCpScheduler::slot_cost(double pairs_of_rank, int degree) const {
  const DynamicCpCosts& costs = options_.costs;
  const auto rows = static_cast<double>(options_.rows);
  return rows * costs.row + pairs_of_rank * costs.pair + (degree - 1) * rows * costs.sent;
}

// Blocks of one degree may change places, and slots too: blocks with similar load come into one slot.
void DynamicCpScheduler::balance_blocks(std::span<const AssignedDocument> documents, std::int64_t slots) {
  const std::int64_t ranks = options_.ranks;
  count_pairs(documents, slots);
  blocks_.clear();
  for (std::int64_t slot = 0; slot < slots; ++slot)
    for (std::int64_t block = slot * ranks; block < slot * ranks + ranks / degrees_[at(slot)]; ++block)
      blocks_.push_back({static_cast<std::int32_t>(block), degrees_[at(slot)], pairs_[at(block)]});
  std::ranges::sort(blocks_, [](const Block& a, const Block& b) {
    return std::tuple(-a.degree, -a.pairs, a.id) < std::tuple(-b.degree, -b.pairs, b.id);
  });
  slots_.clear();
  for (std::int64_t first = 0; first < std::ssize(blocks_);) {
    Slot slot{.first = static_cast<std::int32_t>(first), .degree = blocks_[at(first)].degree};
    first += ranks / slot.degree;
    join_blocks(slot);
    slots_.push_back(slot);
  }
  assign_slots();
}

// Assigns slots_ to replicas and microbatches, those with the highest cost first.
void DynamicCpScheduler::assign_slots() {
  const std::int64_t replicas = options_.replicas, slots = std::ssize(slots_);
  std::ranges::sort(
      slots_, [](const Slot& a, const Slot& b) { return std::tuple(-a.cost, a.first) < std::tuple(-b.cost, b.first); });
  moved_to_.assign(at(slots * options_.ranks), 0);
  rank_costs_.assign(at(replicas * options_.ranks), 0);
  replica_slots_.assign(at(replicas), 0);
  for (const Slot& slot : slots_) assign_slot(slot, slots / replicas);
  for (std::int32_t& block : block_of_) block = moved_to_[at(block)];
}

// Counts the pairs of query and key that attention computes in each block.
void DynamicCpScheduler::count_pairs(std::span<const AssignedDocument> documents, std::int64_t slots) {
  pairs_.assign(at(slots * options_.ranks), 0);
  for (std::size_t i = 0; i < documents.size(); ++i) pairs_[at(block_of_[i])] += pairs_of(documents[i].rows);
}

// Greedy balancing, longest processing time first: the slot, which costs most of those that are left, goes to the
// replica with the least load so far, and its blocks there to the ranks with the least. Every replica begins with its
// most expensive slot; in lockstep, each replica has one before any has the next.
void DynamicCpScheduler::assign_slot(const Slot& slot, std::int64_t microbatches) {
  const std::int64_t ranks = options_.ranks;
  const auto so_far = [&](std::int64_t first, std::int64_t number) {
    const auto begin = rank_costs_.begin() + first;
    return *std::max_element(begin, begin + number);
  };
  const std::int64_t most = options_.lockstep ? *std::ranges::min_element(replica_slots_) + 1 : microbatches;
  std::int64_t replica = -1;
  for (std::int64_t i = 0; i < options_.replicas; ++i)
    if (replica_slots_[at(i)] < most && (replica < 0 || so_far(i * ranks, ranks) < so_far(replica * ranks, ranks)))
      replica = i;
  const std::int64_t to = replica_slots_[at(replica)]++ * options_.replicas + replica;
  const std::int64_t blocks = ranks / slot.degree, joined = slot.joined, degree = slot.degree * joined,
                     parts = blocks / joined;
  degrees_[at(to)] = static_cast<int>(degree);
  // Joined blocks go to blocks of ranks: the one with the highest load to the ranks with the least so far.
  joined_.clear();
  for (std::int64_t part = 0; part < parts; ++part) {
    double pairs = 0;
    for (std::int64_t j = part * joined; j < (part + 1) * joined; ++j)
      pairs += blocks_[at(slot.first + paired_index(j, blocks))].pairs;
    joined_.push_back({static_cast<std::int32_t>(part), static_cast<std::int32_t>(degree), pairs});
  }
  std::ranges::sort(
      joined_, [](const Block& a, const Block& b) { return std::tuple(-a.pairs, a.id) < std::tuple(-b.pairs, b.id); });
  rank_blocks_.resize(at(parts));
  std::iota(rank_blocks_.begin(), rank_blocks_.end(), 0);
  std::ranges::sort(rank_blocks_, [&](std::int32_t a, std::int32_t b) {
    return std::tuple(so_far(replica * ranks + a * degree, degree), a) <
           std::tuple(so_far(replica * ranks + b * degree, degree), b);
  });
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::int64_t part = joined_[at(i)].id, to_block = rank_blocks_[at(i)];
    for (std::int64_t j = part * joined; j < (part + 1) * joined; ++j)
      moved_to_[at(blocks_[at(slot.first + paired_index(j, blocks))].id)] =
          static_cast<std::int32_t>(to * ranks + to_block);
    const double cost = slot_cost(joined_[at(i)].pairs / static_cast<double>(degree), static_cast<int>(degree));
    for (std::int64_t rank = to_block * degree; rank < (to_block + 1) * degree; ++rank)
      rank_costs_[at(replica * ranks + rank)] += cost;
  }
}

// Joins as many neighbours as make the slot cheapest.
void DynamicCpScheduler::join_blocks(Slot& slot) const {
  const int blocks = options_.ranks / slot.degree;
  slot.cost = -1;
  for (int joined = 1; joined <= blocks; ++joined) {
    if (blocks % joined != 0) continue;
    double most = 0, sum = 0;
    for (int j = 0; j < blocks; ++j) {
      sum = (j % joined == 0 ? 0 : sum) + blocks_[at(slot.first + paired_index(j, blocks))].pairs;
      most = std::max(most, sum);
    }
    const int degree = slot.degree * joined;
    const double cost = slot_cost(most / degree, degree);
    if (slot.cost >= 0 && cost >= slot.cost) continue;
    slot.cost = cost;
    slot.joined = joined;
  }
}

// The cost of the present assignment.
double DynamicCpScheduler::measure(std::span<const AssignedDocument> documents, std::int64_t microbatches) {
  const std::int64_t ranks = options_.ranks, replicas = options_.replicas;
  count_pairs(documents, microbatches * replicas);
  rank_costs_.assign(at(replicas * ranks), 0);
  double together = 0;
  for (std::int64_t microbatch = 0; microbatch < microbatches; ++microbatch) {
    double most = 0;
    for (std::int64_t replica = 0; replica < replicas; ++replica)
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t slot = microbatch * replicas + replica;
        const int degree = degrees_[at(slot)];
        const double cost = slot_cost(pairs_[at(slot * ranks + rank / degree)] / degree, degree);
        rank_costs_[at(replica * ranks + rank)] += cost;
        most = std::max(most, cost);
      }
    together += most;
  }
  return options_.lockstep ? together : *std::ranges::max_element(rank_costs_);
}

void DynamicCpScheduler::list_documents(std::size_t documents, std::int64_t microbatches) {
  const std::int64_t blocks = microbatches * options_.replicas * options_.ranks;
  begins_.assign(at(blocks + 1), 0);
  for (std::size_t i = 0; i < documents; ++i) ++begins_[at(block_of_[i] + 1)];
  std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
  listed_.resize(documents);
  for (std::size_t i = documents; i-- > 0;) {  // from the back, moving ends to begins
    const auto block = at(block_of_[i]);
    listed_[at(--begins_[block + 1])] = static_cast<std::int32_t>(i);
  }
  // begins_[b + 1] is now the begin of b: shift.
  for (std::int64_t block = 0; block < blocks; ++block) begins_[at(block)] = begins_[at(block + 1)];
  begins_[at(blocks)] = static_cast<std::int32_t>(documents);
}

}  // namespace tera
