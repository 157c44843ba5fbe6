#pragma once
// What follows from a RunConfig: every size filled in, every rule checked. Made by resolve(), never changed afterwards.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tera/config/run_config.h"

namespace tera {

struct RopeShape {
  double base = 10000;
  std::int64_t rotary_dim = 0;  // leading channels of each head that turn; the rest pass through
  bool interleaved = false;
  RopeScaling scaling;
  bool operator==(const RopeShape&) const = default;
};

struct RecomputeShape {
  bool full = false;
  RecomputeMethod method = RecomputeMethod::uniform;  // of full
  std::int64_t layers = 1;                            // uniform: in a group; block: at the front of a virtual stage
  bool layernorm = false;
  bool activation = false;
  bool mla_up_proj = false;  // queries, keys and values, from the latents
  bool operator==(const RecomputeShape&) const = default;
};

// What waits on the host between F and B: the inputs of these parts of a layer.
struct OffloadShape {
  bool attn_norm = false, qkv_linear = false, core_attn = false, attn_proj = false;
  bool mlp_norm = false, mlp_fc1 = false, mlp_act = false, mlp_fc2 = false;
  bool operator==(const OffloadShape&) const = default;
};

// How a token chooses its experts: by scores of fp32 logits, whose best `topk` give the weights.
struct RouterShape {
  ScoreFunction score = ScoreFunction::softmax;
  std::int64_t topk = 1;
  bool renormalize = true;                  // weights of the chosen are divided by their sum
  float scale = 1;                          // then multiplied by this
  std::int64_t groups = 1, group_topk = 1;  // only among the group_topk best of so many equal groups of neighbours
  std::int64_t group_best = 1;              // a group's score is the sum of so many of its best scores
  bool force_balance = false;               // whatever the scores say
  bool expert_bias = false;                 // added to the scores for the choice alone
  float bias_rate = 1e-3f;                  // how far a step moves it
  bool operator==(const RouterShape&) const = default;
};

struct BalanceLoss {
  LoadBalancing kind = LoadBalancing::aux_loss;  // never none
  double coefficient = 0;                        // above 0
  bool operator==(const BalanceLoss&) const = default;
};

struct MoeShape {
  std::int64_t experts = 0;
  std::int64_t ffn = 0;      // of an expert
  std::vector<bool> layers;  // [L]: which have experts; at least one
  RouterShape router;
  std::vector<BalanceLoss> losses;
  double z_loss = 0;
  TokenDispatcher dispatcher = TokenDispatcher::allgather;
  double capacity_factor = 0;  // of an expert, times its even share; 0: exact, no token is dropped
  TokenDropPolicy drop = TokenDropPolicy::probs;
  double rank_capacity_factor = 0;  // exact: room of a rank, times its even share; 0: for the worst case
  std::int64_t shared_ffn = 0;      // of the expert that every token passes; 0: none
  bool shared_gate = false, shared_overlap = false;
  bool overlap_calls = false;  // as ParallelShape::overlap_expert_comm
  bool operator==(const MoeShape&) const = default;
};

// Heads of latent attention. Widths of the latents, and channels of a head.
struct MlaShape {
  std::int64_t q_lora = 0;  // 0: queries are projected at once
  std::int64_t kv_lora = 0;
  std::int64_t own = 0;     // of queries and keys, without position
  std::int64_t rotary = 0;  // and with
  std::int64_t values = 0;
  bool operator==(const MlaShape&) const = default;
};

struct ModelShape {
  Arch arch = Arch::llama;
  std::int64_t num_layers = 0;
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  // of latent attention: own and rotary together
  std::int64_t vocab = 0;
  std::int64_t padded_vocab = 0;
  std::int64_t max_positions = 0;
  std::vector<std::int64_t> window;  // [L]: keys a query sees with its own, 0 for all
  NormKind norm = NormKind::rms_norm;
  float norm_eps = 1e-5f;
  Activation activation = Activation::swiglu;
  PositionKind positions = PositionKind::rope;
  RopeShape rope;
  bool linear_bias = false;  // every linear layer
  bool qkv_bias = false;     // q, k and v; true whenever linear_bias is
  bool out_bias = false;     // of attention, where not every linear layer has one
  bool mlp_bias = false;     // of the feed-forward part, likewise
  bool qk_norm = false;
  std::optional<MlaShape> mla;
  std::optional<MoeShape> moe;
  std::int64_t mtp_layers = 0;  // behind the last: like it, each predicts one token further ahead
  double mtp_loss_factor = 0;   // of the mean of their losses
  bool tied_embeddings = false;
  bool pad_vocab_in_softmax = false;
  float init_std = 0.02f;
  float hidden_dropout = 0;
  float attention_dropout = 0;
  RecomputeShape recompute;
  OffloadShape offload;
  std::vector<std::string> freeze;  // glob patterns over names of parameters and their parts
  bool operator==(const ModelShape&) const = default;

  std::int64_t all_layers() const { return num_layers + mtp_layers; }
  // Of the layers up to num_layers, the one that a layer is like.
  std::size_t kind_of(std::int64_t layer) const { return static_cast<std::size_t>(std::min(layer, num_layers - 1)); }
  bool has_experts(std::int64_t layer) const { return moe && moe->layers[kind_of(layer)]; }
  std::int64_t expert_layers_before(std::int64_t layer) const {
    std::int64_t before = 0;
    for (std::int64_t i = 0; i < layer; ++i) before += has_experts(i) ? 1 : 0;
    return before;
  }
  std::int64_t expert_layers() const { return expert_layers_before(all_layers()); }
  bool has_dense_ffn() const { return !moe || std::ranges::find(moe->layers, false) != moe->layers.end(); }
};

// What the user wishes about which layers lie where; what comes of it is a StageLayout (tera/pipeline).
struct StageWishes {
  std::optional<int> first_layers, last_layers;  // of the first and the last rank
  bool count_embedding = false, count_loss = false;
  std::string layout;  // Megatron's string, or empty
  bool operator==(const StageWishes&) const = default;
};

// How the run is split over ranks.
struct ParallelShape {
  MeshSizes mesh;
  int dp = 1;  // replicas
  CpCommType cp_comm = CpCommType::p2p;
  bool dynamic_cp = false;         // microbatches have degrees of their own; never with one rank
  bool sequence_parallel = false;  // rows [T/tp,H] outside the split products; never with one rank
  PipelineScheduleKind schedule = PipelineScheduleKind::one_f_one_b;  // never automatic
  int chunks = 1;                                                     // per rank of the pipeline
  int group_size = 1;  // interleaved: microbatches played on a chunk before the next
  StageWishes stages;
  Sharding sharding = Sharding::no_shard;
  std::int64_t bucket_size = 40'000'000;  // elements
  bool overlap_grad_reduce = false, overlap_param_gather = false, tp_comm_overlap = false, overlap_p2p_comm = true;
  bool overlap_expert_comm = false;  // F of a microbatch and B of another are played together
  double timeout_seconds = 600;
  bool operator==(const ParallelShape&) const = default;

  // Of context parallelism, ascending; the last is mesh.cp.
  std::vector<int> context_degrees() const {
    std::vector<int> degrees;
    for (int degree = dynamic_cp ? 1 : mesh.cp; degree <= mesh.cp; ++degree)
      if (mesh.cp % degree == 0) degrees.push_back(degree);
    return degrees;
  }
  int replicas() const { return dp * mesh.cp; }  // ranks whose gradients of the same weights are summed
};

// Whether the ranks that together have all experts of a layer send each other rows of their own. Else these are the
// ranks of one tensor-parallel group, which all have the same rows, and only sums travel.
inline bool cuts_expert_rows(const ParallelShape& parallel, const MoeShape& moe) {
  const MeshSizes& mesh = parallel.mesh;
  const int ranks = (mesh.etp == 0 ? mesh.tp : mesh.etp) * mesh.ep;
  return parallel.sequence_parallel || ranks != mesh.tp || (mesh.ep > 1 && moe.dispatcher == TokenDispatcher::alltoall);
}

// The global batch grows with the samples consumed, by Megatron-LM's rule.
struct RampUp {
  std::int64_t start = 0;  // 0: none
  std::int64_t increment = 0, samples = 0;
  bool operator==(const RampUp&) const = default;
};

// What a run that goes on has behind it, in steps of whatever size they were.
struct Behind {
  std::int64_t steps = 0, samples = 0;
  bool operator==(const Behind&) const = default;
};

struct BatchShape {
  std::int64_t micro_batch = 1;
  std::int64_t global_batch = 1;      // the largest
  std::int64_t num_microbatches = 1;  // of one replica in a step of that size
  // Where the documents of a step are dealt out anew (ParallelShape::dynamic_cp): microbatches of a step at most, else
  // 0.
  std::int64_t most_dealt = 0;
  std::int64_t seq_length = 0;
  std::int64_t train_iters = 0;  // in all, with those behind
  Behind behind;
  RampUp rampup;
  bool packs_documents = false;  // attention stays inside documents
  bool operator==(const BatchShape&) const = default;

  // Of the step that begins after so many samples.
  std::int64_t global_batch_at(std::int64_t consumed) const;
  std::int64_t microbatches_at(std::int64_t consumed) const {
    return global_batch_at(consumed) * num_microbatches / global_batch;
  }
  // When the run is over, where all steps to come have the whole size.
  std::int64_t samples_at_end() const {
    return behind.samples + std::max<std::int64_t>(train_iters - behind.steps, 0) * global_batch;
  }
  std::int64_t largest_step() const { return std::max(most_dealt, num_microbatches); }  // in microbatches
  std::vector<std::int64_t> smaller_steps() const;  // microbatches of steps that have fewer, ascending
};

// In sequences; the horizon is filled in.
struct ScheduleShape {
  std::int64_t warmup_samples = 0;
  std::int64_t decay_samples = 0;
  std::int64_t wsd_decay_samples = 0;
  bool operator==(const ScheduleShape&) const = default;
};

// Parts per whole of the training, validation and test data; they add up to 1.
struct SplitShape {
  double train = 1;
  double valid = 0;
  double test = 0;
  bool operator==(const SplitShape&) const = default;
};

// Datasets of a split, and their weights where the user gave some.
struct BlendShape {
  std::vector<std::string> prefixes;
  std::vector<double> weights;
  bool operator==(const BlendShape&) const = default;
};

// Of dataset.kind=indexed, and of sft, which has files for prefixes and no weights.
struct IndexedShape {
  std::array<BlendShape, 3> blends;      // train, valid, test: the same unless each has its own paths
  bool own_paths = false;                // each split has; dataset.split does not apply
  std::vector<std::string> valid_names;  // of each prefix, where they are evaluated one by one
  bool operator==(const IndexedShape&) const = default;
};

struct Setup {
  RunConfig config;  // as written
  ModelShape model;
  ParallelShape parallel;
  BatchShape batch;
  ScheduleShape schedule;
  SplitShape split;
  IndexedShape indexed;
  std::string run_dir;
  std::vector<std::string> warnings;  // what whoever starts the run should be told
  bool operator==(const Setup&) const = default;
};

}  // namespace tera
