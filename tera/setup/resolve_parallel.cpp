#include "tera/setup/resolve_parallel.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "tera/base/joined.h"
#include "tera/base/nearest.h"
#include "tera/parallel/mesh_rules.h"
#include "tera/setup/resolve_moe.h"

namespace tera {
namespace {

using Kind = PipelineScheduleKind;

constexpr std::string_view tp_key = "dist.tensor_model_parallel_size";
constexpr std::string_view cp_key = "dist.context_parallel_size";
constexpr std::string_view dynamic_key = "dist.dynamic_context_parallel";
constexpr std::string_view chunks_key = "dist.virtual_pipeline_model_parallel_size";
constexpr std::string_view schedule_key = "dist.pipeline_schedule";

void resolve_mesh(const RunConfig& config, int world, Purpose purpose, ParallelShape& shape, Report& report) {
  const DistConfig& dist = config.dist;
  shape.mesh = {.world = world,
                .tp = static_cast<int>(dist.tensor_model_parallel_size),
                .cp = static_cast<int>(dist.context_parallel_size),
                .pp = static_cast<int>(dist.pipeline_model_parallel_size),
                .ep = static_cast<int>(dist.expert_model_parallel_size),
                .etp = static_cast<int>(dist.expert_tensor_parallel_size),
                .order = dist.order};
  const char* const more_ranks = purpose == Purpose::plan ? " (--world N)" : " (--ranks N, or mpirun -n N)";
  const std::vector<MeshProblem> problems = mesh_problems(shape.mesh, config.model.moe.num_experts);
  for (const MeshProblem& problem : problems) {
    if (problem.key == "world")
      report.add("{}", problem.text());
    else
      report.broken(problem.key, "{}{}", problem.rule, world == 1 ? more_ranks : "");
  }
  if (problems.empty()) shape.dp = MeshPlan(shape.mesh).dp();
  shape.cp_comm = dist.cp_comm_type;
  shape.sequence_parallel = dist.sequence_parallel && shape.mesh.tp > 1;
}

// Whether a schedule supports so many chunks (virtual stages) per rank.
bool supports_chunks(Kind schedule, int chunks) {
  switch (schedule) {
    case Kind::interleaved: return chunks > 1;
    case Kind::zero_bubble_v: return chunks == 2;
    default: return chunks == 1;
  }
}

void check_chunks(const DistConfig& dist, const ParallelShape& shape, Report& report) {
  if (!supports_chunks(shape.schedule, shape.chunks)) {
    const char* const valid = shape.schedule == Kind::interleaved     ? "2 or more chunks"
                              : shape.schedule == Kind::zero_bubble_v ? "2 chunks"
                                                                      : "1 chunk";
    const char* const others = shape.chunks == 1   ? "1f1b or zero_bubble"
                               : shape.chunks == 2 ? "interleaved or zero_bubble_v"
                                                   : "interleaved";
    report.broken(chunks_key, "pipeline_schedule={} has {} per rank, not {}; for those there is {}",
                  name_of(shape.schedule), valid, shape.chunks, others);
  } else if (shape.chunks > 1 && shape.mesh.pp == 1) {
    const bool chunks_given = dist.virtual_pipeline_model_parallel_size > 1;
    report.broken(chunks_given ? chunks_key : schedule_key,
                  "{} chunks per rank need pipeline_model_parallel_size of at least 2, which is 1", shape.chunks);
  }
}

void check_group_size(const DistConfig& dist, const ParallelShape& shape, Report& report) {
  constexpr std::string_view key = "dist.microbatch_group_size_per_vp_stage";
  if (dist.microbatch_group_size_per_vp_stage == 0) return;
  if (shape.schedule != Kind::interleaved)
    report.broken(key, "needs pipeline_schedule=interleaved, which is {}; or leave it 0", name_of(shape.schedule));
  else if (shape.group_size < shape.mesh.pp)
    report.broken(key, "must be at least pipeline_model_parallel_size, which is {}; or 0 for that", shape.mesh.pp);
}

void resolve_pipeline(const DistConfig& dist, ParallelShape& shape, Report& report) {
  shape.schedule = dist.pipeline_schedule;
  shape.chunks = static_cast<int>(dist.virtual_pipeline_model_parallel_size);
  if (shape.chunks == 0) shape.chunks = shape.schedule == Kind::zero_bubble_v ? 2 : 1;
  if (shape.schedule == Kind::automatic) shape.schedule = shape.chunks > 1 ? Kind::interleaved : Kind::one_f_one_b;
  const auto group = static_cast<int>(dist.microbatch_group_size_per_vp_stage);
  shape.group_size = group == 0 ? shape.mesh.pp : group;
  check_chunks(dist, shape, report);
  check_group_size(dist, shape, report);

  const auto given = [](std::int64_t layers) {
    return layers == 0 ? std::nullopt : std::optional(static_cast<int>(layers));
  };
  shape.stages = {.first_layers = given(dist.num_layers_in_first_pipeline_stage),
                  .last_layers = given(dist.num_layers_in_last_pipeline_stage),
                  .count_embedding = dist.account_for_embedding_in_pipeline_split,
                  .count_loss = dist.account_for_loss_in_pipeline_split,
                  .layout = dist.pipeline_model_parallel_layout};
}

void resolve_replicas(const RunConfig& config, ParallelShape& shape, Report& report) {
  constexpr std::int64_t min_bucket = 40'000'000, per_replica = 1'000'000;  // Megatron's constants
  const Sharding min_sharding = config.optimizer.use_distributed_optimizer ? Sharding::optim : Sharding::no_shard;
  shape.sharding = std::max(config.ddp.data_parallel_sharding_strategy, min_sharding);
  shape.bucket_size =
      config.ddp.bucket_size == 0 ? std::max(min_bucket, per_replica * shape.replicas()) : config.ddp.bucket_size;

  const CommOverlapConfig& overlap = config.comm_overlap;
  shape.overlap_grad_reduce = overlap.overlap_grad_reduce;
  shape.overlap_param_gather = overlap.overlap_param_gather;
  shape.tp_comm_overlap = overlap.tp_comm_overlap;
  shape.overlap_p2p_comm = overlap.overlap_p2p_comm;
  shape.overlap_expert_comm = overlap.overlap_moe_expert_parallel_comm;
  if (!overlap.overlap_param_gather) return;
  std::vector<std::string_view> needed;
  if (!overlap.overlap_grad_reduce) needed.push_back("overlap_grad_reduce=true");
  if (shape.sharding == Sharding::no_shard) needed.push_back("optimizer.use_distributed_optimizer=true");
  if (!needed.empty()) report.broken("comm_overlap.overlap_param_gather", "needs {}", joined(needed, " and "));
}

// MLP width of dense layers; 0 if there are none, which any tensor-parallel size divides.
std::int64_t dense_ffn(const ModelShape& model) { return model.has_dense_ffn() ? model.ffn : 0; }

// Query heads, MLP width and key heads are sharded over tp ranks; fewer key heads than ranks are replicated.
bool splits_evenly(const ModelShape& model, std::int64_t tp) {
  return model.heads % tp == 0 && dense_ffn(model) % tp == 0 && (model.kv_heads % tp == 0 || tp % model.kv_heads == 0);
}

void check_model_split(const ParallelShape& parallel, const ModelShape& model, Report& report) {
  const std::int64_t tp = parallel.mesh.tp;
  if (model.heads <= 0 || model.kv_heads <= 0 || model.ffn <= 0 || splits_evenly(model, tp)) return;
  std::vector<std::string> rules;
  if (model.heads % tp != 0) rules.push_back(fmt::format("divide model.num_attention_heads, which is {}", model.heads));
  if (dense_ffn(model) % tp != 0) rules.push_back(fmt::format("divide model.ffn_hidden_size, which is {}", model.ffn));
  if (model.kv_heads % tp != 0 && tp % model.kv_heads != 0)
    rules.push_back(fmt::format("divide or be a multiple of model.num_query_groups, which is {}", model.kv_heads));
  report.broken(tp_key, "must {}; nearest: {}", joined(rules, ", "),
                nearest_values(tp, model.heads, [&](std::int64_t v) { return splits_evenly(model, v); }));
}

// Rows of experts are numbered in 32 bits.
void check_expert_rows(const ParallelShape& parallel, const ModelShape& model, const BatchShape& batch,
                       Report& report) {
  if (!model.moe || !cuts_expert_rows(parallel, *model.moe)) return;
  const MeshSizes& mesh = parallel.mesh;
  const double ranks = static_cast<double>(mesh.etp == 0 ? mesh.tp : mesh.etp) * mesh.ep;
  const double choices = static_cast<double>(batch.micro_batch) * static_cast<double>(batch.seq_length) / mesh.cp /
                         mesh.tp * ranks * static_cast<double>(model.moe->router.topk);
  if (choices > 0x1p31 - 1)
    report.broken("dist.expert_model_parallel_size",
                  "the ranks that share experts route {:.0f} choices of tokens at a time; these must be below 2^31",
                  choices);
}

// Zigzag split of context parallelism: each rank has two of 2*cp equal chunks of every sequence. Ulysses also splits
// heads.
void check_context_split(const ParallelShape& parallel, const ModelShape& model, const BatchShape& batch,
                         Report& report) {
  const std::int64_t cp = parallel.mesh.cp, tp = parallel.mesh.tp;
  if (cp <= 1) return;
  if (batch.seq_length > 0 && batch.seq_length % (2 * cp) != 0)
    report.broken("train.seq_length", "must be a multiple of twice {}, which is {}; nearest: {}", cp_key, cp,
                  nearest_multiples(2 * cp, batch.seq_length));
  const bool ulysses = parallel.cp_comm == CpCommType::a2a;
  if (!ulysses || model.heads <= 0 || model.kv_heads <= 0 || model.heads % tp != 0) return;
  const std::int64_t heads = model.heads / tp, kv_heads = std::max<std::int64_t>(model.kv_heads / tp, 1);
  const auto is_valid = [&](std::int64_t v) { return heads % v == 0 && kv_heads % v == 0; };
  if (!is_valid(cp))
    report.broken(cp_key,
                  "with cp_comm_type=a2a it must divide the {} query heads and the {} key heads of a tensor-parallel "
                  "rank; nearest: {}",
                  heads, kv_heads, nearest_values(cp, heads, is_valid));
}

void check_row_split(const ParallelShape& parallel, const ModelShape& model, const BatchShape& batch, Report& report) {
  const std::int64_t tp = parallel.mesh.tp, cp = parallel.mesh.cp;
  const std::int64_t rows = batch.micro_batch * (batch.seq_length / cp);
  const bool experts = model.moe && cuts_expert_rows(parallel, *model.moe);
  if ((!parallel.sequence_parallel && !experts) || batch.seq_length % cp != 0 || rows % tp == 0) return;
  const std::int64_t unit = cp > 1 ? 2 * cp : 1;
  const auto is_valid = [&](std::int64_t sequence) {
    return sequence % unit == 0 && batch.micro_batch * (sequence / cp) % tp == 0;
  };
  report.broken(parallel.sequence_parallel ? "dist.sequence_parallel" : "dist.expert_model_parallel_size",
                "tensor_model_parallel_size, which is {}, must divide train.micro_batch_size x seq_length{}, which is "
                "{}; nearest: train.seq_length {}",
                tp, cp > 1 ? " / context_parallel_size" : "", rows,
                nearest_values(batch.seq_length, batch.seq_length + unit * tp, is_valid));
}

// Settings whose results depend on which rows share a microbatch.
std::vector<std::string> what_microbatches_change(const RunConfig& config, const ModelShape& model) {
  std::vector<std::string> keys;
  if (config.train.loss_reduction != LossReduction::global) keys.emplace_back("train.loss_reduction=microbatch");
  if (!model.moe) return keys;
  if (!model.moe->losses.empty())
    keys.emplace_back("model.moe.aux_loss_coeff above 0 (the model's default may be; set it to 0)");
  if (model.moe->z_loss > 0) keys.emplace_back("model.moe.z_loss_coeff above 0");
  if (model.moe->router.expert_bias) keys.emplace_back("model.moe.router_enable_expert_bias=true");
  if (model.moe->router.force_balance) keys.emplace_back("model.moe.router_force_load_balancing=true");
  if (model.moe->capacity_factor > 0) keys.emplace_back("model.moe.expert_capacity_factor above 0");
  return keys;
}

}  // namespace

// The limit is a quarter more microbatches than full sequences need, since packed documents leave gaps.
void resolve_dynamic_context(const RunConfig& config, Setup& setup, Report& report) {
  constexpr int max_dynamic_cp_ranks = 1024;  // limit for a replica; each degree has its own process groups
  if (!config.dist.dynamic_context_parallel) return;
  const int cp = setup.parallel.mesh.cp;
  setup.parallel.dynamic_cp = cp > 1;
  if (cp == 1) return;  // there is only one degree
  if (cp > max_dynamic_cp_ranks)
    report.broken(cp_key, "with dynamic_context_parallel=true it must be at most {}", max_dynamic_cp_ranks);
  if (!setup.batch.packs_documents)
    report.broken(dynamic_key,
                  "deals out packed documents: needs dataset.reset_attention_mask=true or dataset.kind=sft");
  if (const auto keys = what_microbatches_change(config, setup.model); !keys.empty())
    report.broken(dynamic_key,
                  "does not go with {}: results would depend on how documents, and padding, are dealt to microbatches",
                  joined(keys, ", "));
  if (setup.parallel.overlap_expert_comm)
    report.broken(dynamic_key,
                  "does not go with comm_overlap.overlap_moe_expert_parallel_comm=true, which pairs microbatches of "
                  "the same shape");
  const std::int64_t number = setup.batch.num_microbatches;
  setup.batch.max_dynamic_microbatches = number + (number + 3) / 4;
}

ParallelShape resolve_parallel(const RunConfig& config, int world, Purpose purpose, Report& report) {
  ParallelShape shape;
  resolve_mesh(config, world, purpose, shape, report);
  resolve_pipeline(config.dist, shape, report);
  resolve_replicas(config, shape, report);
  shape.timeout_seconds = config.dist.timeout_seconds;
  return shape;
}

void check_split(const ParallelShape& parallel, const ModelShape& model, const BatchShape& batch, Report& report) {
  check_model_split(parallel, model, report);
  check_expert_split(parallel, model, report);
  check_expert_overlap(parallel, model, report);
  check_context_split(parallel, model, batch, report);
  check_row_split(parallel, model, batch, report);
  check_expert_rows(parallel, model, batch, report);
}

}  // namespace tera
