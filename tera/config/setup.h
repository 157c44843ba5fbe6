#pragma once
// The resolved configuration of a run: derived from a RunConfig by resolve(), with every size filled in and every rule
// checked, and never changed afterwards.

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
  std::int64_t rotary_dim = 0;  // leading channels of each head that RoPE rotates; the rest pass through
  bool interleaved = false;
  RopeScaling scaling;
  bool operator==(const RopeShape&) const = default;
};

struct RecomputeShape {
  bool full = false;
  RecomputeMethod method = RecomputeMethod::uniform;  // method of full recomputation
  std::int64_t layers = 1;  // uniform: layers of a group; block: leading layers of a virtual stage
  bool layernorm = false;
  bool activation = false;
  bool mla_up_proj = false;  // up-projection of the latents to queries, keys and values
  bool operator==(const RecomputeShape&) const = default;
};

// Activation offloading: the inputs of these modules are on the host between F and B.
struct OffloadShape {
  bool attn_norm = false, qkv_linear = false, core_attn = false, attn_proj = false;
  bool mlp_norm = false, mlp_fc1 = false, mlp_act = false, mlp_fc2 = false;
  bool operator==(const OffloadShape&) const = default;
};

// The router: scores of fp32 logits select the top-k experts of a token and give their weights.
struct RouterShape {
  ScoreFunction score = ScoreFunction::softmax;
  std::int64_t topk = 1;
  bool renormalize = true;                  // weights of the selected experts are divided by their sum
  float scale = 1;                          // factor of the weights, after renormalization
  std::int64_t groups = 1, group_topk = 1;  // group-limited routing: experts of the group_topk best groups
  std::int64_t group_best = 1;              // a group's score is the sum of its group_best highest scores
  bool force_balance = false;               // equally many tokens per expert, whatever the scores are
  bool expert_bias = false;                 // a bias per expert, added to the scores for the selection alone
  float bias_rate = 1e-3f;                  // change of the expert bias per step
  bool operator==(const RouterShape&) const = default;
};

struct BalanceLoss {
  LoadBalancing kind = LoadBalancing::aux_loss;  // never none
  double coefficient = 0;                        // above 0
  bool operator==(const BalanceLoss&) const = default;
};

struct MoeShape {
  std::int64_t experts = 0;
  std::int64_t ffn = 0;      // intermediate width of an expert
  std::vector<bool> layers;  // [L]: which are MoE layers; at least one is
  RouterShape router;
  std::vector<BalanceLoss> losses;
  double z_loss = 0;
  TokenDispatcher dispatcher = TokenDispatcher::allgather;
  double capacity_factor = 0;  // capacity of an expert, in even shares of the tokens; 0: dropless
  TokenDropPolicy drop = TokenDropPolicy::probs;
  double rank_capacity_factor = 0;  // dropless: buffer of a rank, in even shares; 0: for the worst case
  std::int64_t shared_ffn = 0;      // intermediate width of the shared expert; 0: none
  bool shared_gate = false, shared_overlap = false;
  bool overlap_calls = false;  // equals ParallelShape::overlap_expert_comm
  bool operator==(const MoeShape&) const = default;
};

// Multi-head latent attention (MLA): ranks of the latents, and channels of a head.
struct MlaShape {
  std::int64_t q_lora = 0;  // 0: queries have no latent
  std::int64_t kv_lora = 0;
  std::int64_t nope = 0;    // channels of queries and keys without position (qk_nope_head_dim)
  std::int64_t rotary = 0;  // channels of queries and keys that RoPE rotates (qk_rope_head_dim)
  std::int64_t values = 0;
  bool operator==(const MlaShape&) const = default;
};

struct ModelShape {
  const ModelFamily* family = nullptr;
  std::int64_t num_layers = 0;
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  // MLA: nope + rotary
  std::int64_t vocab = 0;
  std::int64_t padded_vocab = 0;
  std::int64_t max_positions = 0;
  std::vector<std::int64_t> window;  // [L]: sliding window, keys that a query sees, its own included; 0: all
  NormKind norm = NormKind::rms_norm;
  float norm_eps = 1e-5f;
  Activation activation = Activation::swiglu;
  PositionKind positions = PositionKind::rope;
  RopeShape rope;
  bool linear_bias = false;  // every linear layer
  bool qkv_bias = false;     // q, k and v; true whenever linear_bias is
  bool out_bias = false;     // output projection of attention, where not every linear layer has a bias
  bool mlp_bias = false;     // MLP, where not every linear layer has a bias
  bool qk_norm = false;
  std::optional<MlaShape> mla;
  std::optional<MoeShape> moe;
  std::int64_t mtp_layers = 0;  // MTP depth: layers after the last, of the same shape as it
  double mtp_loss_factor = 0;   // factor of the mean of the MTP losses
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
  // Index of the main layer that has the shape of `layer`; MTP layers are shaped like the last one.
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

// Requested layout of layers over pipeline stages, from which a StageLayout is made (tera/parallel).
struct StageRequest {
  std::optional<int> first_layers, last_layers;  // layers of the first and the last pipeline rank
  bool count_embedding = false, count_loss = false;
  std::string layout;  // Megatron's layout string, or empty
  bool operator==(const StageRequest&) const = default;
};

// The parallel layout of a run.
struct ParallelShape {
  MeshSizes mesh;
  int dp = 1;  // data-parallel replicas
  CpCommType cp_comm = CpCommType::p2p;
  bool dynamic_cp = false;         // dynamic CP: a degree per microbatch; never with one rank
  bool sequence_parallel = false;  // rows [T/tp,H] outside tensor-parallel GEMMs; never with one rank
  PipelineScheduleKind schedule = PipelineScheduleKind::one_f_one_b;  // never automatic
  int chunks = 1;                                                     // virtual stages per pipeline rank
  int group_size = 1;  // interleaved: microbatches run on a chunk before the next chunk
  StageRequest stages;
  Sharding sharding = Sharding::no_shard;
  std::int64_t bucket_size = 40'000'000;  // elements
  bool overlap_grad_reduce = false, overlap_param_gather = false, tp_comm_overlap = false, overlap_p2p_comm = true;
  bool overlap_expert_comm = false;  // all-to-all of a microbatch's F overlaps with the B of another
  double timeout_seconds = 600;
  bool operator==(const ParallelShape&) const = default;

  // Context-parallel degrees of microbatches, ascending; the last is mesh.cp.
  std::vector<int> context_degrees() const {
    std::vector<int> degrees;
    for (int degree = dynamic_cp ? 1 : mesh.cp; degree <= mesh.cp; ++degree)
      if (mesh.cp % degree == 0) degrees.push_back(degree);
    return degrees;
  }
  int replicas() const { return dp * mesh.cp; }  // ranks whose gradients of the same weights are summed
};

// Whether expert-parallel ranks have different rows, which are dispatched to the ranks of their experts. Otherwise
// these ranks are one tensor-parallel group with the same rows, and only an all-reduce of the outputs is needed.
inline bool cuts_expert_rows(const ParallelShape& parallel, const MoeShape& moe) {
  const MeshSizes& mesh = parallel.mesh;
  const int ranks = (mesh.etp == 0 ? mesh.tp : mesh.etp) * mesh.ep;
  return parallel.sequence_parallel || ranks != mesh.tp || (mesh.ep > 1 && moe.dispatcher == TokenDispatcher::alltoall);
}

// Batch-size ramp-up: the global batch grows with the samples consumed, by Megatron-LM's rule.
struct RampUp {
  std::int64_t start = 0;  // 0: none
  std::int64_t increment = 0, samples = 0;
  bool operator==(const RampUp&) const = default;
};

// Progress of a resumed run: steps, of whatever size they were, and samples consumed.
struct ResumeOffset {
  std::int64_t steps = 0, samples = 0;
  bool operator==(const ResumeOffset&) const = default;
};

struct BatchShape {
  std::int64_t micro_batch = 1;
  std::int64_t global_batch = 1;      // after the ramp-up
  std::int64_t num_microbatches = 1;  // per replica, in a step of global_batch
  // Dynamic CP (ParallelShape::dynamic_cp): limit on microbatches of a step, into which documents are packed; else 0.
  std::int64_t max_dynamic_microbatches = 0;
  std::int64_t seq_length = 0;
  std::int64_t train_iters = 0;  // steps in total, those before a resume included
  ResumeOffset resume;
  RampUp rampup;
  bool packs_documents = false;  // attention stays inside documents
  bool operator==(const BatchShape&) const = default;

  // Global batch of the step that begins after `consumed` samples.
  std::int64_t global_batch_at(std::int64_t consumed) const;
  std::int64_t microbatches_at(std::int64_t consumed) const {
    return global_batch_at(consumed) * num_microbatches / global_batch;
  }
  // Samples consumed at the end of the run, if all steps to come have the full size.
  std::int64_t samples_at_end() const {
    return resume.samples + std::max<std::int64_t>(train_iters - resume.steps, 0) * global_batch;
  }
  std::int64_t largest_step() const { return std::max(max_dynamic_microbatches, num_microbatches); }  // in microbatches
  std::vector<std::int64_t> smaller_steps() const;  // numbers of microbatches of smaller steps, ascending
};

// Lengths of the learning-rate schedule in sequences; decay_samples is always filled in.
struct ScheduleShape {
  std::int64_t warmup_samples = 0;
  std::int64_t decay_samples = 0;
  std::int64_t wsd_decay_samples = 0;
  bool operator==(const ScheduleShape&) const = default;
};

// Fractions of training, validation and test data; their sum is 1.
struct SplitShape {
  double train = 1;
  double valid = 0;
  double test = 0;
  bool operator==(const SplitShape&) const = default;
};

// Datasets of a split, and their blending weights if the user gave any.
struct BlendShape {
  std::vector<std::string> prefixes;
  std::vector<double> weights;
  bool operator==(const BlendShape&) const = default;
};

// Datasets of dataset.kind=indexed, and of sft, whose prefixes are files and which has no weights.
struct IndexedShape {
  std::array<BlendShape, 3> blends;      // train, valid, test: the same unless each has its own paths
  bool data_per_split = false;           // each split has its own paths; dataset.split does not apply
  std::vector<std::string> valid_names;  // names of the prefixes, if the sets are evaluated one by one
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
  std::vector<std::string> warnings;  // for the user, reported at the start of the run
  bool operator==(const Setup&) const = default;
};

}  // namespace tera
