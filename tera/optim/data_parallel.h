#pragma once
// Keeps data-parallel ranks equal. Gradients are summed bucket by bucket, as soon as all blocks of a bucket are done or
// at the end; updated weights are handed round. Where ranks keep only their share of gradients or weights (ZeRO-2, 3),
// the whole is there only around a block's call:
//
//              before a block's call             after it                          end of step, after the update
//   no_shard                                     last W: all_reduce the bucket
//   optim                                        last W: reduce_scatter            all_gather weights
//   .. grads   room for gradients, empty         every B, W: reduce_scatter, add   all_gather weights
//   .. params  all_gather weights (next too)     release weights; grads likewise
//
// Gradients of a step begin empty: the first one of a matrix is written, later ones are added (Param::next_adds). The
// rest, norms and biases, is cleared before.
//
// Each sum over ranks is made in the order of ranks and added in the order of microbatches, so nothing here depends on
// time: with or without overlap, under every schedule, results are bitwise the same.
//
// Buckets of routed experts go over edp, all others over dp_cp. Both sums are plain, without a factor: the gradient is
// that of sum_t loss_t / (tokens of the global batch), t over all of them. A dense parameter's replica has the terms of
// its own tokens. An expert has those of all tokens that were sent to it, from anywhere among the ranks of its etp and
// ep; each token reaches one of the edp replicas of an expert. Either way every term is on one replica.

#include <vector>

#include "tera/comm/groups.h"
#include "tera/nn/params.h"
#include "tera/pipeline/pipeline.h"

namespace tera {

class DataParallel final : public ParamWatch {
 public:
  struct Options {
    bool overlap_grad_reduce = false;   // start a bucket's sum when it is complete, not when all are
    bool overlap_param_gather = false;  // wait for weights where they are first used
    std::vector<bool> grads_in_f{};     // per block: its forward makes gradients too
  };
  DataParallel(ParamStore& params, Groups& groups, Ops& ops, Options options);  // params are bound

  void training(bool on) { training_ = on; }  // else no block makes gradients

  // Before the first action: whatever gradients there are belong to an earlier step.
  void begin_gradients();

  void before(int block, Act act, int next_block) override;
  void after(int block, Act act, bool last) override;

  // After the last action: every gradient that this rank keeps is the sum over all ranks.
  void finish_gradients();
  // After the update: every rank has all weights again, or will fetch the new ones.
  void hand_out_weights();
  // Weights that are on their way have come. Before anything but a block reads them.
  void wait_for_weights();

 private:
  struct ReplicaSum {         // of gradients that several ranks of a tensor-parallel group have terms of
    std::int64_t begin, end;  // in the bucket
    Comm* group;
  };
  struct State {  // of one bucket
    int blocks_left = 0;
    Ticket weights, grads;                 // on their way, where they are kept whole
    int weight_room = -1, grad_room = -1;  // negative: none
    bool share_empty = false;              // no sum has come yet, where a share of gradients is kept
    std::vector<ReplicaSum> sums;
  };
  struct Room {
    int bucket = -1;
    bool busy = false;
    Ticket grads;            // the sum over ranks that is made in it
    std::uint64_t used = 0;  // when, for the choice of the one to reuse
  };

  std::vector<ReplicaSum> replica_sums(const Bucket& bucket) const;
  bool makes_gradients(int block, Act act) const;
  Comm& replicas_of(const Bucket& bucket) const { return bucket.expert ? groups_.edp : groups_.dp_cp; }
  void fetch(int bucket, bool ahead);
  int free_room() const;
  void open_grads(int bucket);
  void close_grads(int bucket);
  void collect_grads(int room);
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
  std::vector<Room> weight_rooms_, grad_rooms_;
  std::uint64_t clock_ = 0;
};

}  // namespace tera
