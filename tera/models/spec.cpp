#include "tera/models/spec.h"

#include <charconv>
#include <cmath>

#include "tera/base/error.h"
#include "tera/config/family.h"
#include "tera/models/family_names.h"
#include "tera/nn/ffn/mlp.h"
#include "tera/nn/ffn/moe.h"
#include "tera/nn/mixers/attention.h"
#include "tera/nn/mixers/mla.h"

namespace tera {
namespace {

// Builds the specs of one model, with the names of its family.
class SpecMaker {
 public:
  SpecMaker(const ModelShape& model, std::uint64_t seed)
      : model_(model), names_(family_of(model).names()), seed_(seed) {}

  ModelSpec make() const {
    ModelSpec spec{.embedding = embedding(),
                   .layers = {},
                   .head = head(),
                   .mtp = {},
                   .tied = model_.tied_embeddings,
                   .recompute = recompute()};
    for (std::int64_t i = 0; i < model_.num_layers; ++i) spec.layers.push_back(layer(i));
    for (std::int64_t i = model_.num_layers; i < model_.all_layers(); ++i) spec.mtp.push_back(mtp(i));
    return spec;
  }

 private:
  std::string in_layer(std::int64_t layer, const std::string& name) const {
    return names_.layer + std::to_string(layer) + "." + name;
  }
  NormSpec norm(std::string name, std::int64_t size) const {
    return {.name = std::move(name), .size = size, .kind = model_.norm, .eps = model_.norm_eps};
  }
  RecomputeRule recompute() const {
    const RecomputeShape& wanted = model_.recompute;
    if (!wanted.full) return {};
    if (wanted.method == RecomputeMethod::uniform) return {.unit = wanted.layers};
    return {.unit = 1, .layers_per_chunk = wanted.layers};
  }
  // Projections back into the residual stream start smaller, so that its variance does not grow with depth.
  float output_std() const { return model_.init_std / std::sqrt(2.0f * static_cast<float>(model_.num_layers)); }

  LayerSpec layer(std::int64_t i) const {
    const BranchSpec mixer = model_.mla ? BranchSpec(mla(i)) : attention(i);
    const BranchSpec ffn = model_.has_experts(i) ? BranchSpec(moe(i)) : mlp(i);
    return {{sublayer(in_layer(i, names_.attention_norm), in_layer(i, "attention"), mixer),
             sublayer(in_layer(i, names_.mlp_norm), in_layer(i, "mlp"), ffn)}};
  }

  SublayerSpec sublayer(std::string norm_name, std::string name, BranchSpec branch) const {
    return {.norm = norm(std::move(norm_name), model_.hidden),
            .post_norm = {},
            .branches = {{.name = std::move(name), .branch = std::move(branch), .norm = {}}},
            .dropout = model_.hidden_dropout,
            .seed = seed_,
            .recompute_norm = model_.recompute.layernorm};
  }

  MtpSpec mtp(std::int64_t i) const {
    const MtpNames& names = names_.mtp;
    MtpSpec spec{
        .input = {.embedding = embedding(),
                  .embedding_norm = norm(in_layer(i, names.embedding_norm), model_.hidden),
                  .hidden_norm = norm(in_layer(i, names.hidden_norm), model_.hidden),
                  .project = linear(i, names.project, 2 * model_.hidden, model_.hidden, model_.init_std, Split::none)},
        .layer = layer(i),
        .head = head()};
    spec.input.embedding.dropout_name = in_layer(i, names.embedding);
    spec.input.project.bias = false;
    spec.head.norm.name = in_layer(i, names.final_norm);
    return spec;
  }

  EmbeddingSpec embedding() const {
    return {.name = names_.embedding,
            .vocab = model_.vocab,
            .padded_vocab = model_.padded_vocab,
            .hidden = model_.hidden,
            .position_name = model_.positions == PositionKind::learned_absolute ? names_.positions : "",
            .max_positions = model_.max_positions,
            .init_std = model_.init_std,
            .dropout = model_.hidden_dropout,
            .init_padding = model_.pad_vocab_in_softmax,
            .seed = seed_};
  }

  HeadSpec head() const {
    return {.norm = norm(names_.final_norm, model_.hidden),
            .name = names_.head,
            .vocab = model_.vocab,
            .padded_vocab = model_.padded_vocab,
            .hidden = model_.hidden,
            .pad_vocab_in_softmax = model_.pad_vocab_in_softmax,
            .init_std = model_.init_std};
  }

  LinearSpec linear(std::int64_t layer, const std::string& name, std::int64_t in, std::int64_t out, float std,
                    Split split) const {
    const std::string full = in_layer(layer, name);
    return {.name = full,
            .in = in,
            .out = {{.name = full, .rows = out}},
            .bias = model_.linear_bias,
            .init_std = std,
            .transposed = names_.transposed,
            .split = split};
  }

  static LinearSpec with_bias(LinearSpec spec, bool bias) {
    spec.bias = spec.bias || bias;
    return spec;
  }

  LinearSpec qkv(std::int64_t layer) const {
    const std::int64_t q = model_.heads * model_.head_dim, kv = model_.kv_heads * model_.head_dim;
    const std::int64_t groups = model_.kv_heads, all = q + 2 * kv;
    LinearSpec spec = linear(layer, names_.qkv[0], model_.hidden, all, model_.init_std, Split::out);
    spec.bias = model_.qkv_bias;
    if (names_.qkv.size() == 3) {
      spec.name = in_layer(layer, "self_attn.qkv_proj");
      spec.out = {{.name = in_layer(layer, names_.qkv[0]), .rows = q},
                  {.name = in_layer(layer, names_.qkv[1]), .rows = kv, .units = groups},
                  {.name = in_layer(layer, names_.qkv[2]), .rows = kv, .units = groups}};
    } else {  // one tensor in files, but each rank has its heads of q, of k and of v
      const std::string name = spec.out[0].name;
      spec.out = {{.name = name, .rows = q, .file_rows = all},
                  {.name = name, .rows = kv, .units = groups, .first_row = q, .file_rows = all},
                  {.name = name, .rows = kv, .units = groups, .first_row = q + kv, .file_rows = all}};
    }
    return spec;
  }

  LinearSpec up(std::int64_t layer) const {
    if (!is_gated(model_.activation))
      return linear(layer, names_.up, model_.hidden, model_.ffn, model_.init_std, Split::out);
    LinearSpec spec = linear(layer, "mlp.gate_up_proj", model_.hidden, 2 * model_.ffn, model_.init_std, Split::out);
    spec.out = {{.name = in_layer(layer, names_.gated_up[0]), .rows = model_.ffn},
                {.name = in_layer(layer, names_.gated_up[1]), .rows = model_.ffn}};
    return spec;
  }

  std::optional<RopeSpec> rope() const {
    if (model_.positions != PositionKind::rope) return std::nullopt;
    return RopeSpec{.max_positions = model_.max_positions,
                    .rotary_dim = model_.rope.rotary_dim,
                    .base = model_.rope.base,
                    .interleaved = model_.rope.interleaved,
                    .scaling = model_.rope.scaling};
  }

  AttentionSpec attention(std::int64_t i) const {
    AttentionSpec spec{
        .name = in_layer(i, "attention"),
        .qkv = qkv(i),
        .out = with_bias(linear(i, names_.out, model_.heads * model_.head_dim, model_.hidden, output_std(), Split::in),
                         model_.out_bias),
        .heads = model_.heads,
        .kv_heads = model_.kv_heads,
        .head_dim = model_.head_dim,
        .rope = rope(),
        .window = model_.window[model_.kind_of(i)],
        .dropout = model_.attention_dropout,
        .seed = seed_,
        .layer = static_cast<int>(i)};
    if (model_.qk_norm) {
      spec.q_norm = norm(in_layer(i, names_.q_norm), model_.head_dim);
      spec.k_norm = norm(in_layer(i, names_.k_norm), model_.head_dim);
      spec.q_norm->per_head = spec.k_norm->per_head = true;
    }
    return spec;
  }

  // Latents have the epsilon of all published models, whatever the other norms have.
  NormSpec latent_norm(std::string name, std::int64_t size) const {
    return {.name = std::move(name), .size = size, .kind = model_.norm, .eps = 1e-6f};
  }

  LinearSpec latents(std::int64_t layer) const {
    const MlaShape& mla = *model_.mla;
    const MlaNames& names = *names_.mla;
    LinearSpec spec = linear(layer, "self_attn.latent_proj", model_.hidden, 0, model_.init_std, Split::none);
    spec.out.clear();
    if (mla.q_lora > 0) spec.out.push_back({.name = in_layer(layer, names.q_down), .rows = mla.q_lora});
    spec.out.push_back({.name = in_layer(layer, names.kv_down), .rows = mla.kv_lora + mla.rotary});
    spec.bias = model_.qkv_bias;
    return spec;
  }

  MlaSpec mla(std::int64_t i) const {
    const MlaShape& shape = *model_.mla;
    const MlaNames& names = *names_.mla;
    const bool latent = shape.q_lora > 0;
    const std::int64_t q = model_.heads * (shape.nope + shape.rotary), kv = model_.heads * (shape.nope + shape.values);
    const double growth = model_.rope.scaling.mscale_all_dim == 0
                              ? 1
                              : yarn_growth(model_.rope.scaling, model_.rope.scaling.mscale_all_dim);
    MlaSpec spec{
        .name = in_layer(i, "attention"),
        .down = latents(i),
        .q_norm = {},
        .kv_norm = latent_norm(in_layer(i, names.kv_norm), shape.kv_lora),
        .q = linear(i, latent ? names.q_up : names.q, latent ? shape.q_lora : model_.hidden, q, model_.init_std,
                    Split::out),
        .kv = linear(i, names.kv_up, shape.kv_lora, kv, model_.init_std, Split::out),
        .out = with_bias(linear(i, names_.out, model_.heads * shape.values, model_.hidden, output_std(), Split::in),
                         model_.out_bias),
        .heads = model_.heads,
        .q_lora = shape.q_lora,
        .kv_lora = shape.kv_lora,
        .nope = shape.nope,
        .rotary = shape.rotary,
        .values = shape.values,
        .rope = *rope(),
        .scale = static_cast<float>(growth * growth / std::sqrt(static_cast<double>(shape.nope + shape.rotary))),
        .window = model_.window[model_.kind_of(i)],
        .dropout = model_.attention_dropout,
        .seed = seed_,
        .layer = static_cast<int>(i),
        .recompute_up = model_.recompute.mla_up_proj};
    if (latent) spec.q_norm = latent_norm(in_layer(i, names.q_norm), shape.q_lora);
    return spec;
  }

  MlpSpec mlp(std::int64_t i) const {
    return {
        .up = with_bias(up(i), model_.mlp_bias),
        .down = with_bias(linear(i, names_.down, model_.ffn, model_.hidden, output_std(), Split::in), model_.mlp_bias),
        .activation = model_.activation,
        .recompute_activation = model_.recompute.activation};
  }

  static double& coefficient(RouterSpec& spec, LoadBalancing kind) {
    if (kind == LoadBalancing::seq_aux_loss) return spec.sequence_balance;
    return kind == LoadBalancing::global_aux_loss ? spec.global_balance : spec.balance;
  }

  RouterSpec router(std::int64_t i) const {
    const RouterShape& shape = model_.moe->router;
    RouterSpec spec{.name = in_layer(i, names_.experts->router),
                    .hidden = model_.hidden,
                    .experts = model_.moe->experts,
                    .rule = {.score = shape.score,
                             .topk = shape.topk,
                             .renormalize = shape.renormalize,
                             .scale = shape.scale,
                             .groups = shape.groups,
                             .group_topk = shape.group_topk,
                             .group_best = shape.group_best,
                             .force_balance = shape.force_balance},
                    .init_std = model_.init_std,
                    .z = model_.moe->z_loss,
                    .bias = {},
                    .layer = model_.expert_layers_before(i)};
    if (shape.expert_bias) spec.bias = spec.name + ".e_score_correction_bias";
    for (const BalanceLoss& loss : model_.moe->losses) coefficient(spec, loss.kind) = loss.coefficient;
    return spec;
  }

  SharedExpertSpec shared_expert(std::int64_t i) const {
    const std::string at = names_.experts->shared + ".";
    const std::int64_t ffn = model_.moe->shared_ffn;
    LinearSpec up = linear(i, at + "gate_up_proj", model_.hidden, 2 * ffn, model_.init_std, Split::out);
    up.out = {{.name = in_layer(i, at + "gate_proj"), .rows = ffn}, {.name = in_layer(i, at + "up_proj"), .rows = ffn}};
    return {.up = std::move(up),
            .down = linear(i, at + "down_proj", ffn, model_.hidden, output_std(), Split::in),
            .gate = model_.moe->shared_gate ? in_layer(i, names_.experts->shared_gate) : std::string(),
            .gate_std = model_.init_std};
  }

  MoeSpec moe(std::int64_t i) const {
    const ExpertNames& names = *names_.experts;
    MoeSpec spec{.name = in_layer(i, "mlp"),
                 .router = router(i),
                 .experts = {.name = in_layer(i, "mlp.experts"),
                             .prefix = in_layer(i, names.expert),
                             .up = {"." + names.gate, "." + names.up},
                             .down = "." + names.down,
                             .experts = model_.moe->experts,
                             .hidden = model_.hidden,
                             .ffn = model_.moe->ffn,
                             .up_std = model_.init_std,
                             .down_std = output_std()},
                 .shared = {},
                 .activation = model_.activation,
                 .dispatcher = model_.moe->dispatcher,
                 .rank_capacity = model_.moe->rank_capacity_factor,
                 .expert_capacity = model_.moe->capacity_factor,
                 .drop = model_.moe->drop,
                 .recompute_activation = model_.recompute.activation,
                 .overlap_shared = model_.moe->shared_overlap,
                 .overlap_calls = model_.moe->overlap_calls};
    if (model_.moe->shared_ffn > 0) spec.shared = shared_expert(i);
    return spec;
  }

  const ModelShape& model_;
  FamilyNames names_;
  std::uint64_t seed_;
};

}  // namespace

std::int64_t layer_of(const FamilyNames& names, std::string_view tensor) {
  std::int64_t layer = -1;
  if (tensor.starts_with(names.layer)) {
    tensor.remove_prefix(names.layer.size());
    std::from_chars(tensor.data(), tensor.data() + tensor.size(), layer);
  }
  return layer;
}

std::string mtp_mark(const FamilyNames& names, std::int64_t layer) {
  return names.layer + std::to_string(layer) + "." + names.mtp.embedding_norm + ".weight";
}

ModelSpec make_decoder_spec(const ModelShape& model, std::uint64_t dropout_seed) {
  return SpecMaker(model, dropout_seed).make();
}

ModelSpec make_spec(const ModelShape& model, std::uint64_t dropout_seed) {
  return family_of(model).make_spec(model, dropout_seed);
}

}  // namespace tera
