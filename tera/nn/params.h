#pragma once
// Parameters. A block asks for them when it is built; ParamStore alone owns their memory.
//
// Memory is flat, so that the optimizer runs over few long ranges. All flat tensors share one numbering of elements,
// cut into buckets: what ranks with the same parameters reduce and gather at a time.
//
//   weight (compute dtype)  [ bucket 0 | bucket 1 | ... | frozen ]         a bucket: [ decayed | not decayed | gap ]
//   master, grad (f32)      [ bucket 0 | bucket 1 | ... ]                  in fp32 runs master is weight
//
// Each parameter begins on a multiple of `alignment` elements; the gaps stay zero. Data-parallel ranks may share the
// work (ZeRO): each bucket is cut into equal shares, one per rank, and a rank keeps only its own share of the masters
// and moments, of the gradients, or of the weights too. What is not kept whole gets room for the time it is needed.
//
//   bucket   [ share of rank 0 | share of rank 1 | share of rank 2 ]       shares have a numbering of their own
//
// Parameters of routed experts have other replicas than all else (docs/parallelism.md), so no bucket has both kinds.
//
// What follows from the choices of experts and not from gradients is in no flat tensor: f32 whatever compute is, whole
// and equal on all ranks of its layer.

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tera/nn/part.h"
#include "tera/tensor/arena.h"

namespace tera {

class Ops;

struct Init {
  enum class Kind : std::uint8_t { zeros, ones, normal };
  Kind kind = Kind::zeros;
  float std = 0;
  bool padding = false;  // also draw rows behind those that the part names (vocabulary padding); else they are zero
};

struct ParamSpec {
  std::string name;
  Shape shape;              // of what this rank holds
  std::vector<Part> parts;  // in order of rows; rows behind the last part are padding
  Init init;
  bool decay = true;  // weight decay applies
  bool trainable = true;
  bool expert = false;             // of routed experts: its replicas are the ranks of edp, its parts are cut over etp
  bool partial_gradient = false;   // replicas of a part each have only some of the terms of its gradient
  bool written_first = false;      // who makes its gradients asks Param::next_adds(): nothing is cleared for them
  bool on_another_stage = false;   // a tied table: the other end of the pipeline has it too
  bool counted_elsewhere = false;  // and it is that stage's to count it

  // What a step makes of the choices of a layer's rows (optim/expert_load.h); such a parameter is never trainable.
  enum class Counts : std::uint8_t { none, bias, shares };
  Counts counts = Counts::none;
  std::int64_t counted_layer = -1;  // among the layers with experts
  bool held = false;                // frozen: it stays as it is

  bool is_counted() const { return counts != Counts::none; }
};

struct Param {
  ParamSpec spec;
  Tensor value{};           // what compute reads; none while its bucket is not fetched
  Tensor master{};          // f32; none when frozen, or when this rank keeps only a share
  Tensor grad{};            // f32, accumulates; none when frozen or not fetched
  std::int64_t offset = 0;  // in the flat numbering
  int bucket = -1;          // negative: frozen
  std::vector<int> blocks{};
  bool grad_empty = false;  // what is in grad is none yet, but of an earlier step, or anything: even NaN

  // Whether the gradient that is made next is added to those in grad; else it is written over what is there.
  bool next_adds() { return !std::exchange(grad_empty, false); }
};

// A value that is computed once and never trained, e.g. the table of RoPE angles.
struct Constant {
  std::string name;
  Shape shape;
  std::vector<double> arguments;  // all that fill depends on; constants equal in name, shape and arguments are one
  std::function<void(std::span<float>)> fill;
  Tensor value;  // f32
};

// Ranks that hold the same parameters, and which of them this is.
struct Replica {
  int index = 0, count = 1;
};

// One for the parameters of routed experts, one for all others.
template <class T>
struct ByKind {
  T dense{}, expert{};
  const T& of(bool is_expert) const { return is_expert ? expert : dense; }
};
using Replicas = ByKind<Replica>;

struct Bucket {
  bool expert = false;                            // each of its parameters is, or none
  Replica shares{};                               // ranks that share it, and which of them this is
  std::int64_t begin = 0, end = 0;                // in the flat numbering
  std::int64_t decayed_end = 0;                   // parameters from here on are not decayed
  std::int64_t share_begin = 0;                   // of this rank's share, in the numbering of shares
  std::int64_t weight_begin = 0, grad_begin = 0;  // of what is kept of it, in memory
  bool keeps_weight = true, keeps_grad = true;    // whole
  std::vector<Param*> params{};
  std::vector<int> blocks{};  // that use them, ascending
  struct Range {
    std::int64_t begin, end;
  };
  std::vector<Range> cleared{};  // in the bucket: all but parameters that are written first, gaps included

  Tensor weight{}, grad{};                        // [elements] all of it; none while it is not kept or fetched
  Tensor own_weight{}, own_master{}, own_grad{};  // [share]; views of the above where that is kept
  std::int64_t elements() const { return end - begin; }
  std::int64_t share() const { return elements() / shares.count; }   // elements
  std::int64_t own_begin() const { return shares.index * share(); }  // of this rank's share, in the bucket
  std::int64_t own_end() const { return own_begin() + share(); }
};

// How the numbering is cut, and what a rank keeps.
struct FlatRules {
  std::int64_t bucket_size = 0;                 // elements that fill a bucket; 0: one bucket
  bool bucket_per_block = false;                // what is fetched for a block and released after it
  Replicas shares{};                            // ranks that share the buckets of a kind
  bool keep_grads = true, keep_weights = true;  // whole; what no other rank has a share of always is
  bool whole_model = true;                      // else freeze patterns may match nothing
};

class ParamStore {
 public:
  static constexpr std::int64_t alignment = 128;  // elements

  // Parameters are not trained when a pattern in `freeze` matches their name, or patterns match all of their parts.
  explicit ParamStore(DType compute, std::vector<std::string> freeze = {});
  ParamStore(const ParamStore&) = delete;
  ParamStore& operator=(const ParamStore&) = delete;

  void begin_block(int block) { block_ = block; }  // parameters added from here on are this block's
  Param& add(ParamSpec spec);                      // the reference stays valid
  void share(Param& param);                        // the block uses another block's parameter too
  Constant& add_constant(Constant constant);
  DType compute() const { return compute_; }

  // Numbers the elements; after the last add() and before bind(). UserError when a freeze pattern matches nothing, or
  // some parts of a parameter but not all.
  void lay_out(const FlatRules& rules = {});

  // Takes memory for everything. Called once with measuring arenas, once with real ones. Without gradients (inference)
  // `grads` and `masters` stay untouched.
  struct Memory {
    Arena& weights;
    Arena& constants;
    Arena* masters = nullptr;
    Arena* grads = nullptr;
  };
  void bind(const Memory& memory);

  // Draws initial values; each is a function of seed, part name and element alone. Fills the constants. Gradients are
  // zero afterwards.
  void initialize(Ops& ops, std::uint64_t seed);
  void fill_constants(Ops& ops);

  std::span<Param* const> by_name() const { return by_name_; }
  Param& find(const std::string& name);  // throws if there is none
  std::int64_t count_elements() const;   // of all parameters, padding included; what is counted is none

  std::span<Bucket> buckets() { return buckets_; }
  std::span<const Bucket> buckets() const { return buckets_; }
  const FlatRules& rules() const { return rules_; }
  // Parameters of the bucket are in this memory from now on; none: nowhere.
  void place_weights(Bucket& bucket, const Tensor& whole);
  void place_grads(Bucket& bucket, const Tensor& whole);
  // The gradients of a bucket begin anew: what is written first is empty, the rest is cleared.
  void empty_grads(Ops& ops, Bucket& bucket);
  // No more will come: what is still empty is cleared.
  void complete_grads(Ops& ops, Bucket& bucket);
  // Room for whole buckets that are not kept, each large enough for any.
  std::span<const Tensor> weight_rooms() const { return weight_rooms_; }  // compute dtype
  std::span<const Tensor> grad_rooms() const { return grad_rooms_; }      // f32

  // Ranges of this rank's shares, with and without decay: what an optimizer updates.
  struct Group {
    Tensor master, grad, copy;  // copy: the compute form, none when compute is f32
    bool decay;
    std::int64_t begin, end;  // in the numbering of shares
  };
  std::span<const Group> groups() const { return groups_; }
  std::int64_t trained_elements() const { return ends_.flat; }
  std::int64_t share_elements() const { return ends_.shares; }
  // Trained parameters of a kind are together in the flat numbering: dense ones end here, those of experts follow.
  std::int64_t dense_end() const { return dense_end_; }

 private:
  void check_freeze() const;
  void make_buckets();
  void number(Bucket& bucket);
  void bind_buckets(const Tensor& weights, const Tensor& masters, const Tensor& grads);
  struct Rooms {
    int number = 0;
    std::int64_t elements = 0;  // of each
  };
  Rooms count_rooms(bool Bucket::*kept) const;
  void bind_rooms(const Memory& memory, bool train);
  void make_groups();
  void initialize(Ops& ops, std::uint64_t seed, Bucket& bucket);

  DType compute_;
  std::vector<std::string> freeze_;
  int block_ = 0;
  std::deque<Param> params_;
  std::deque<Constant> constants_;
  std::vector<Param*> by_name_;
  FlatRules rules_;
  std::vector<Bucket> buckets_;
  std::vector<Tensor> weight_rooms_, grad_rooms_;
  std::vector<Group> groups_;
  struct Ends {  // of what is numbered, or lies in memory one after the other
    std::int64_t flat = 0, shares = 0, weights = 0, grads = 0;
  };
  Ends ends_;                               // of the trained parameters
  std::int64_t dense_end_ = 0, total_ = 0;  // total: with the frozen ones
};

}  // namespace tera
