#pragma once
// Parameters, gradients and master weights in flat buffers. A block registers its parameters when it is built;
// ParamStore alone owns their memory.
//
// Memory is flat, so that the optimizer runs over few long ranges. All flat tensors share one numbering of elements,
// divided into buckets: the unit in which data-parallel ranks reduce gradients and gather weights.
//
//   weight (compute dtype)  [ bucket 0 | bucket 1 | ... | frozen ]         a bucket: [ decayed | not decayed | gap ]
//   master, grad (f32)      [ bucket 0 | bucket 1 | ... ]                  in fp32 runs master is weight
//
// Each parameter begins on a multiple of `alignment` elements; the gaps stay zero. With ZeRO each bucket is divided
// into equal shards, one per data-parallel rank, and a rank keeps only its own shard of the master weights and moments
// (ZeRO-1), of the gradients (ZeRO-2), of the weights too (ZeRO-3). What is not kept in full gets one of a pool of
// buffers while it is needed.
//
//   bucket   [ shard of rank 0 | shard of rank 1 | shard of rank 2 ]       shards have a numbering of their own
//
// Parameters of routed experts have other replicas than all else (docs/parallelism.md), so no bucket has both kinds.
//
// Router state, which follows from the choices of experts and not from gradients, is in no flat tensor: it is f32
// whatever compute is, complete and equal on all ranks of its layer.

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
  bool padding = false;  // draws rows after those of the part (vocabulary padding) too; false: they are zero
};

struct ParamSpec {
  std::string name;
  Shape shape;              // shape of what this rank holds
  std::vector<Part> parts;  // in order of rows; rows after the last part are padding
  Init init;
  bool decay = true;  // weight decay applies
  bool trainable = true;
  bool expert = false;                  // weight of routed experts: replicated over edp, sharded over etp
  bool partial_gradient = false;        // each replica of a part has only some terms of its gradient
  bool first_use_overwrites = false;    // the gradient GEMM asks Param::accumulate_next(), so nothing is cleared
  bool on_another_stage = false;        // a tied embedding table: the other end of the pipeline has it too
  bool norm_counted_elsewhere = false;  // the gradient norm counts the copy on that stage, not this one

  // Router state: what a step makes of its rows' choices of experts (optim/expert_load.h), `shares` the fraction of
  // them that each expert had. Such a parameter is never trainable.
  enum class Counts : std::uint8_t { none, bias, shares };
  Counts counts = Counts::none;
  std::int64_t router_layer = -1;  // among the layers with experts
  bool frozen = false;             // router state that stays as it is

  bool is_router_state() const { return counts != Counts::none; }
};

struct Param {
  ParamSpec spec;
  Tensor value{};           // compute dtype; none while its bucket is not gathered
  Tensor master{};          // f32; none when frozen, or when this rank keeps only a shard
  Tensor grad{};            // f32, accumulates; none when frozen or without a buffer
  std::int64_t offset = 0;  // in the flat numbering
  int bucket = -1;          // negative: frozen
  std::vector<int> blocks{};
  bool grad_empty = false;  // grad holds nothing of this step yet, but anything, even NaN

  // The accumulate flag of the gradient that is made next: whether it is added to grad or overwrites it.
  bool accumulate_next() { return !std::exchange(grad_empty, false); }
};

// A value that is computed once and never trained (a buffer in PyTorch), e.g. the table of RoPE angles.
struct Constant {
  std::string name;
  Shape shape;
  std::vector<double> arguments;  // arguments of fill; constants equal in name, shape and arguments are one
  std::function<void(std::span<float>)> fill;
  Tensor value;  // f32
};

// How many ranks hold the same parameters, and this rank's index among them.
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
  bool expert = false;                            // all of its parameters are of routed experts, or none
  Replica shards{};                               // ranks that it is sharded over, and this rank's index
  std::int64_t begin = 0, end = 0;                // in the flat numbering
  std::int64_t decayed_end = 0;                   // parameters from here on are not decayed
  std::int64_t shard_begin = 0;                   // begin of this rank's shard, in the numbering of shards
  std::int64_t weight_begin = 0, grad_begin = 0;  // begin of what is kept, in memory
  bool keeps_weight = true, keeps_grad = true;    // in full, not a shard
  std::vector<Param*> params{};
  std::vector<int> blocks{};  // that use them, ascending
  struct Range {
    std::int64_t begin, end;
  };
  std::vector<Range> cleared{};  // in the bucket: all but parameters with first_use_overwrites, gaps included

  Tensor weight{}, grad{};                              // [elements]: in full; none while neither kept nor gathered
  Tensor local_weight{}, local_master{}, local_grad{};  // [shard]; views of the above where these are kept
  std::int64_t elements() const { return end - begin; }
  std::int64_t shard_size() const { return elements() / shards.count; }
  std::int64_t local_begin() const { return shards.index * shard_size(); }  // begin of this rank's shard, in the bucket
  std::int64_t local_end() const { return local_begin() + shard_size(); }
};

// How the numbering is divided into buckets, and what a rank keeps.
struct FlatRules {
  std::int64_t bucket_size = 0;                 // elements that fill a bucket; 0: one bucket
  bool bucket_per_block = false;                // a block's weights are gathered before it and released after it
  Replicas shards{};                            // ranks that buckets of a kind are sharded over
  bool keep_grads = true, keep_weights = true;  // in full; a bucket with one shard always is
  bool global_model = true;                     // the store has all blocks; else freeze patterns may match nothing
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

  // Numbers the elements; called after the last add() and before bind(). UserError when a freeze pattern matches
  // nothing, or some parts of a parameter but not all.
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

  // Draws initial values, each a function of seed, part name and element alone. Fills the constants. Gradients are zero
  // afterwards.
  void initialize(Ops& ops, std::uint64_t seed);
  void fill_constants(Ops& ops);

  std::span<Param* const> by_name() const { return by_name_; }
  Param& find(const std::string& name);  // throws if there is none
  std::int64_t count_elements() const;   // counts all parameters, padding included, without router state

  std::span<Bucket> buckets() { return buckets_; }
  std::span<const Bucket> buckets() const { return buckets_; }
  const FlatRules& rules() const { return rules_; }
  // Parameters of the bucket are in this memory from now on; none: nowhere.
  void place_weights(Bucket& bucket, const Tensor& full);
  void place_grads(Bucket& bucket, const Tensor& full);
  // Gradients of the bucket begin anew: those with first_use_overwrites are marked empty, the rest is cleared.
  void empty_grads(Ops& ops, Bucket& bucket);
  // No more gradients will come: those that are still empty are cleared.
  void complete_grads(Ops& ops, Bucket& bucket);
  // Pools of buffers for buckets that are not kept in full, each buffer large enough for any of them.
  std::span<const Tensor> weight_buffers() const { return weight_buffers_; }  // compute dtype
  std::span<const Tensor> grad_buffers() const { return grad_buffers_; }      // f32

  // Ranges of this rank's shards, with and without weight decay: what an optimizer updates.
  struct Group {
    Tensor master, grad, copy;  // copy: the weights in compute dtype, none when that is f32
    bool decay;
    std::int64_t begin, end;  // in the numbering of shards
  };
  std::span<const Group> groups() const { return groups_; }
  std::int64_t trained_elements() const { return ends_.flat; }
  std::int64_t shard_elements() const { return ends_.shards; }
  // Trained parameters of a kind are together in the flat numbering: dense ones end here, those of experts follow.
  std::int64_t dense_end() const { return dense_end_; }

 private:
  void check_freeze() const;
  void make_buckets();
  void number(Bucket& bucket);
  void bind_buckets(const Tensor& weights, const Tensor& masters, const Tensor& grads);
  struct BufferCounts {
    int number = 0;
    std::int64_t elements = 0;  // size of each buffer
  };
  BufferCounts count_buffers(bool Bucket::*kept) const;
  void bind_buffers(const Memory& memory, bool train);
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
  std::vector<Tensor> weight_buffers_, grad_buffers_;
  std::vector<Group> groups_;
  struct Ends {  // ends of the numberings, and of the kept weights and gradients in memory
    std::int64_t flat = 0, shards = 0, weights = 0, grads = 0;
  };
  Ends ends_;                               // ends of the trained parameters
  std::int64_t dense_end_ = 0, total_ = 0;  // total: with the frozen ones
};

}  // namespace tera
