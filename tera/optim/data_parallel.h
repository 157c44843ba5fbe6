#pragma once
// Data parallelism with ZeRO-0 to 3 (sharding strategies as in Megatron-LM). Gradients are reduced bucket by bucket, as
// soon as all blocks of a bucket are done or at the end of gradient accumulation; updated weights are all-gathered.
// Where ranks keep only their shard of gradients (ZeRO-2) or weights (ZeRO-3), full buckets exist only around a block's
// call:
//
//              before a block's call             after it                          end of step, after the update
//   no_shard                                     last W: all_reduce the bucket
//   optim                                        last W: reduce_scatter            all_gather weights
//   .. grads   gradient buffer, empty            every B, W: reduce_scatter, add   all_gather weights
//   .. params  all_gather weights, prefetch      release weights; grads as above
//
// Gradients of a step begin empty: the first one of a matrix overwrites, later ones accumulate
// (Param::accumulate_next). The rest, norms and biases, is cleared before.
//
// Each sum over ranks is made in the order of ranks and added in the order of microbatches, so nothing here depends on
// time: with or without overlap, under every schedule, results are bitwise the same.
//
// Buckets of routed experts go over edp, all others over dp_cp. Both sums are plain, without a factor: the gradient is
// that of sum_t loss_t / (tokens of the global batch), t over all of them. A dense parameter's replica has the terms of
// its own tokens. An expert has the terms of all tokens that were dispatched to it from the ranks of its etp and ep;
// each token reaches one of the edp replicas of an expert. Either way every term is on one replica.

#include <vector>

#include "tera/nn/params.h"
#include "tera/parallel/groups.h"
#include "tera/pipeline/pipeline.h"

namespace tera {

class DataParallel final : public ParamHooks {
 public:
  struct Options {
    bool overlap_grad_reduce = false;   // start a bucket's reduction when it is complete, not when all are
    bool overlap_param_gather = false;  // wait for weights where they are first used
    std::vector<bool> grads_in_f{};     // per block: its forward makes gradients too
  };
  DataParallel(ParamStore& params, Groups& groups, Ops& ops, Options options);  // params are bound

  void training(bool on) { training_ = on; }  // off: no block makes gradients

  // Before the first action: gradients of the step before are discarded.
  void begin_gradients();

  void before(int block, Act act, int next_block) override;
  void after(int block, Act act, bool last) override;

  // After the last action: every gradient that this rank keeps is the sum over all ranks.
  void finish_gradients();
  // After the update: all-gathers weights that are kept in full; others will be fetched anew.
  void all_gather_params();
  // Waits for all-gathers in flight; called before anything but a block reads weights.
  void wait_for_weights();

 private:
  struct ReplicaSum {         // an all-reduce of gradients of which ranks of a tensor-parallel group have terms
    std::int64_t begin, end;  // in the bucket
    Comm* group;
  };
  struct State {  // state of one bucket
    int blocks_left = 0;
    Ticket weights, grads;                     // collectives in flight, of what is kept in full
    int weight_buffer = -1, grad_buffer = -1;  // negative: none
    bool shard_is_empty = false;               // the shard of gradients holds no sum of this step yet
    std::vector<ReplicaSum> sums;
  };
  struct PoolBuffer {
    int bucket = -1;
    bool busy = false;
    Ticket grads;            // the reduction that is made in it
    std::uint64_t used = 0;  // when; the least recently used is reused
  };

  std::vector<ReplicaSum> replica_sums(const Bucket& bucket) const;
  bool makes_gradients(int block, Act act) const;
  Comm& replicas_of(const Bucket& bucket) const { return bucket.expert ? groups_.edp : groups_.dp_cp; }
  void fetch(int bucket, bool prefetch);
  int free_buffer() const;
  void open_grads(int bucket);
  void close_grads(int bucket);
  void collect_grads(int buffer);
  void sum_replicas(int bucket);
  Ticket start_reduce(int bucket);

  ParamStore& params_;
  Groups& groups_;
  Options options_;
  Ops* ops_;
  bool training_ = true;
  bool begun_ = false;  // gradients belong to this step
  std::vector<State> states_;
  std::vector<std::vector<int>> buckets_of_;  // per block
  std::vector<PoolBuffer> weight_buffers_, grad_buffers_;
  std::uint64_t clock_ = 0;
};

}  // namespace tera
