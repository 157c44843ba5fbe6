#include "tera/setup/resolve_moe.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tera/base/joined.h"
#include "tera/base/nearest.h"
#include "tera/config/family.h"
#include "tera/config/moe_layers.h"
#include "tera/config/value.h"
#include "tera/parallel/mesh_rules.h"

namespace tera {
namespace {

std::string no_experts(const ModelFamily& family) {
  return fmt::format("a {} has no experts; model.arch={} have", family.name,
                     list_families_with_experts(built_in_families()));
}

// What keys about experts need in a model without any.
std::string needs_experts(const ModelFamily* family) {
  return family && !family->has_experts ? no_experts(*family) : "needs model.moe.num_experts";
}

// "aux_loss_coeff=[a, b]"
std::string one_for_each(std::size_t losses) {
  std::vector<char> letters(std::min<std::size_t>(losses, 26));
  std::iota(letters.begin(), letters.end(), 'a');
  return fmt::format("aux_loss_coeff=[{}]", joined(letters, ", "));
}

// Resolves model.moe. Every number is within its limits, and there is at least one expert.
class MoeResolver {
 public:
  MoeResolver(const RunConfig& config, const ModelShape& dense, Report& report)
      : config_(config), moe_(config.model.moe), dense_(dense), report_(report) {}

  MoeShape resolve() {
    copy_plain_values();
    resolve_layers();
    resolve_router();
    resolve_groups();
    resolve_losses();
    check_bias();
    check_capacity();
    check_shared();
    check_model();
    return std::move(shape_);
  }

 private:
  void copy_plain_values() {
    shape_.experts = moe_.num_experts;
    shape_.ffn = moe_.ffn_hidden_size == 0 ? dense_.ffn : moe_.ffn_hidden_size;
    shape_.z_loss = moe_.z_loss_coeff;
    shape_.dispatcher = moe_.token_dispatcher_type;
    shape_.capacity_factor = moe_.expert_capacity_factor;
    shape_.rank_capacity_factor = moe_.expert_rank_capacity_factor;
    shape_.drop = moe_.token_drop_policy;
    shape_.shared_ffn = moe_.shared_expert_intermediate_size;
    shape_.shared_gate = moe_.shared_expert_gate;
    shape_.shared_overlap = moe_.shared_expert_overlap;
    shape_.overlap_calls = config_.comm_overlap.overlap_moe_expert_parallel_comm;
  }

  void resolve_layers() {
    for (const std::int64_t layer : moe_.mlp_only_layers)
      if (layer < 0 || layer >= dense_.num_layers)
        report_.broken("model.moe.mlp_only_layers", "{} is no layer; they are 0 to {}", layer, dense_.num_layers - 1);
    shape_.layers = moe_layers(moe_, dense_.num_layers);
    if (dense_.num_layers > 0 && std::find(shape_.layers.begin(), shape_.layers.end(), true) == shape_.layers.end())
      report_.broken("model.moe.num_experts",
                     "no layer would have experts, by layer_freq={}, first_k_dense={}, decoder_sparse_step={} and "
                     "mlp_only_layers",
                     moe_.layer_freq, moe_.first_k_dense, moe_.decoder_sparse_step);
  }

  void resolve_router() {
    RouterShape& router = shape_.router;
    const bool softmax = moe_.router_score_function == ScoreFunction::softmax;
    router.score = moe_.router_score_function;
    router.topk = moe_.router_topk;
    router.renormalize = softmax ? !moe_.router_pre_softmax : moe_.router_topk > 1;
    router.scale = static_cast<float>(moe_.router_topk_scaling_factor);
    router.force_balance = moe_.router_force_load_balancing;
    router.expert_bias = moe_.router_enable_expert_bias;
    router.bias_rate = static_cast<float>(moe_.router_bias_update_rate);
    if (moe_.router_topk > moe_.num_experts)
      report_.broken("model.moe.router_topk", "more than num_experts, which is {}", moe_.num_experts);
    if (!softmax && moe_.router_pre_softmax)
      report_.broken("model.moe.router_pre_softmax", "needs router_score_function=softmax");
    if (softmax && !moe_.router_pre_softmax && moe_.router_topk == 1)
      report_.broken("model.moe.router_topk",
                     "the weight of one expert alone would always be 1, which teaches the router nothing; set "
                     "router_pre_softmax=true");
    check_rows();
  }

  // Rows of experts are numbered in 32 bits.
  void check_rows() {
    constexpr double max_rows = 0x1p31 - 1;
    const double rows =
        static_cast<double>(config_.train.micro_batch_size) * static_cast<double>(config_.train.seq_length);
    if (rows * static_cast<double>(moe_.router_topk) > max_rows)
      report_.broken("model.moe.router_topk", "times train.micro_batch_size x seq_length must be below 2^31");
  }

  // Group-limited routing: DeepSeek-V3 (sigmoid) scores a group by its two best experts, V2 (softmax) by its best.
  void resolve_groups() {
    const std::int64_t groups = moe_.router_num_groups, chosen = moe_.router_group_topk;
    if (groups == 0 && chosen == 0) return;
    if (groups == 0 || chosen == 0)
      return report_.missing(groups == 0 ? "model.moe.router_num_groups" : "model.moe.router_group_topk",
                             "router_num_groups and router_group_topk go together; for no groups, set both to 0");
    if (moe_.num_experts % groups != 0)
      return report_.broken("model.moe.router_num_groups", "must divide num_experts, which is {}; nearest: {}",
                            moe_.num_experts, nearest_divisors(moe_.num_experts, groups));
    const std::int64_t size = moe_.num_experts / groups;
    if (chosen > groups)
      report_.broken("model.moe.router_group_topk", "more than router_num_groups, which is {}", groups);
    else if (chosen * size < moe_.router_topk)
      report_.broken("model.moe.router_group_topk",
                     "so many groups have {} experts, fewer than router_topk, which is {}", chosen * size,
                     moe_.router_topk);
    shape_.router.groups = groups;
    shape_.router.group_topk = chosen;
    shape_.router.group_best =
        moe_.router_score_function == ScoreFunction::sigmoid ? std::min<std::int64_t>(2, size) : 1;
  }

  void resolve_losses() {
    constexpr std::string_view types_key = "model.moe.router_load_balancing_type",
                               coefficients_key = "model.moe.aux_loss_coeff";
    const auto& types = moe_.router_load_balancing_type;
    const auto& coefficients = moe_.aux_loss_coeff;
    if (types.size() != coefficients.size())
      report_.broken(coefficients_key, "has {} values for the {} of router_load_balancing_type; write {}",
                     coefficients.size(), types.size(), one_for_each(types.size()));
    std::set<std::string> seen;
    for (std::size_t i = 0; i < types.size(); ++i) {
      const auto kind = parse_enum<LoadBalancing>(types[i]);
      const double coefficient = i < coefficients.size() ? coefficients[i] : 0;
      if (!kind)
        report_.broken(types_key, "'{}' is not {}", types[i], list_names<LoadBalancing>());
      else if (!seen.insert(types[i]).second)
        report_.broken(types_key, "{} is there twice", types[i]);
      else if (kind == LoadBalancing::none && types.size() > 1)
        report_.broken(types_key, "none stands alone");
      else if (kind == LoadBalancing::none && coefficient != 0)
        report_.broken(coefficients_key, "needs router_load_balancing_type, which is none; or set it to 0");
      else if (coefficient != 0)
        shape_.losses.push_back({*kind, coefficient});
    }
  }

  void check_bias() {
    if (moe_.router_enable_expert_bias && moe_.router_score_function != ScoreFunction::sigmoid)
      report_.broken("model.moe.router_enable_expert_bias", "needs router_score_function=sigmoid; or set it to false");
  }

  void check_capacity() {
    const double rank_factor = moe_.expert_rank_capacity_factor;
    if (moe_.expert_capacity_factor == 0 && moe_.token_drop_policy != TokenDropPolicy::probs)
      report_.broken("model.moe.token_drop_policy", "needs expert_capacity_factor: without it no token is dropped");
    if (rank_factor > 0 && rank_factor < 1)
      report_.broken("model.moe.expert_rank_capacity_factor",
                     "must be 0, or at least 1: less than an even share is never enough");
    if (rank_factor > 0 && moe_.expert_capacity_factor > 0)
      report_.broken("model.moe.expert_rank_capacity_factor",
                     "is for runs that drop no token; give either this or expert_capacity_factor");
  }

  void check_shared() {
    if (moe_.shared_expert_intermediate_size > 0) return;
    if (moe_.shared_expert_gate)
      report_.broken("model.moe.shared_expert_gate", "needs shared_expert_intermediate_size");
    if (moe_.shared_expert_overlap)
      report_.broken("model.moe.shared_expert_overlap", "needs shared_expert_intermediate_size");
  }

  void check_model() {
    const ModelConfig& model = config_.model;
    if (dense_.family && !dense_.family->has_experts)
      report_.broken("model.moe.num_experts", "{}", no_experts(*dense_.family));
    if (model.add_bias_linear) report_.broken("model.add_bias_linear", "experts have no biases");
    if (model.add_mlp_bias) report_.broken("model.add_mlp_bias", "experts have no biases");
  }

  const RunConfig& config_;
  const MoeConfig& moe_;
  const ModelShape& dense_;
  Report& report_;
  MoeShape shape_;
};

// Reports keys of model.moe that are set for a dense model.
void check_without_experts(const RunConfig& config, Report& report) {
  const MoeConfig defaults;
  const ModelFamily* family = config.model.arch;
  if (family && family->has_experts) return report.missing("model.moe.num_experts", "a {} has experts", family->name);
  for (const Field& field : MoeConfig::fields())
    if (write_value(field, field.address_in(&defaults)) != write_value(field, field.address_in(&config.model.moe)))
      report.broken(fmt::format("model.moe.{}", field.name), "{}",
                    family ? no_experts(*family) : "needs model.moe.num_experts, which is 0");
}

// Expert-parallel sizes that divide the experts: those that fit the mesh, or any if none does.
std::string nearest_expert_split(const MeshSizes& mesh, std::int64_t experts) {
  const std::string here = nearest_values(mesh.ep, experts, [&](std::int64_t ep) {
    MeshSizes changed = mesh;
    changed.ep = static_cast<int>(ep);
    return experts % ep == 0 && is_valid_mesh(changed);
  });
  return here.empty() ? nearest_divisors(experts, mesh.ep) : here;
}

}  // namespace

std::optional<MoeShape> resolve_moe(const RunConfig& config, const ModelShape& dense, Report& report) {
  if (config.model.moe.num_experts > 0) return MoeResolver(config, dense, report).resolve();
  check_without_experts(config, report);
  return std::nullopt;
}

void check_expert_split(const ParallelShape& parallel, const ModelShape& model, Report& report) {
  constexpr std::string_view ep_key = "dist.expert_model_parallel_size", etp_key = "dist.expert_tensor_parallel_size";
  const MeshSizes& mesh = parallel.mesh;
  if (!model.moe) {
    const std::string why = needs_experts(model.family);
    if (mesh.ep > 1) report.broken(ep_key, "{}; or leave it 1", why);
    if (mesh.etp > 0) report.broken(etp_key, "{}; or leave it 0", why);
    return;
  }
  const MoeShape& moe = *model.moe;
  const std::int64_t etp = mesh.etp == 0 ? mesh.tp : mesh.etp;
  if (moe.experts % mesh.ep != 0)
    report.broken(ep_key, "must divide model.moe.num_experts, which is {}; nearest: {}, or model.moe.num_experts {}",
                  moe.experts, nearest_expert_split(mesh, moe.experts), nearest_multiples(mesh.ep, moe.experts));
  if (moe.ffn > 0 && moe.ffn % etp != 0)
    report.broken(etp_key, "{}must divide the width of an expert, which is {}; nearest: {}",
                  mesh.etp == 0 ? fmt::format("tensor_model_parallel_size, which is {}, ", etp) : "", moe.ffn,
                  nearest_divisors(moe.ffn, etp));
  if (moe.shared_ffn % mesh.tp != 0)
    report.broken("model.moe.shared_expert_intermediate_size",
                  "must be a multiple of dist.tensor_model_parallel_size, which is {}; nearest: {}", mesh.tp,
                  nearest_multiples(mesh.tp, moe.shared_ffn));
}

void check_expert_overlap(const ParallelShape& parallel, const ModelShape& model, Report& report) {
  constexpr std::string_view key = "comm_overlap.overlap_moe_expert_parallel_comm";
  if (!parallel.overlap_expert_comm) return;
  if (!model.moe) return report.broken(key, "{}", needs_experts(model.family));
  if (parallel.mesh.ep == 1)
    report.broken(key, "needs dist.expert_model_parallel_size of at least 2: with 1, no row travels");
  if (model.recompute.full)
    report.broken(key, "plays a layer in parts, which model.recompute_granularity=full plays as one; selective works");
  if (model.offload != OffloadShape{})
    report.broken(key, "plays two layers at a time, for which model.offload_modules has no buffers; leave that empty");
  if (parallel.sharding == Sharding::optim_grads_params)
    report.broken(key,
                  "plays two layers at a time, and ddp.data_parallel_sharding_strategy=optim_grads_params has weights "
                  "of one; optim_grads works");
}

}  // namespace tera
