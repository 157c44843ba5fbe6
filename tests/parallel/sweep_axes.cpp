#include "tests/parallel/sweep_axes.h"

#include <algorithm>
#include <map>
#include <optional>

#include "tera/base/error.h"
#include "tera/base/joined.h"

namespace tera::test {
namespace {

using Names = std::vector<std::string>;

constexpr std::uint32_t seed = 1;
constexpr int max_ranks = 8;

const Overrides common{"train.seq_length=16"};  // which every degree of context parallelism can cut

std::vector<SweepAxis> make_axes() {
  const Overrides uniform{"model.recompute_granularity=full", "model.recompute_method=uniform",
                          "model.recompute_num_layers=2"};
  const Overrides block{"model.recompute_granularity=full", "model.recompute_method=block",
                        "model.recompute_num_layers=1"};
  const Overrides up{"model.recompute_granularity=selective", "model.recompute_modules=[layernorm,mla_up_proj]"};
  const Overrides gather = overlap + Overrides{"comm_overlap.overlap_param_gather=true"};
  const Overrides growing{"train.rampup_batch_size=[4,4,12]", "train.train_iters=0", "train.train_samples=100",
                          "train.micro_batch_size=1"};
  return {
      {"model",
       {{"llama", {}, {}, {.key_heads = 2}},
        {"gpt", {}, {}, {.key_heads = 4}},
        {"experts", {}, {}, {.key_heads = 2}},
        {"expert_bias", {}, {}, {.key_heads = 2}},
        {"mla", {}, {}, {.key_heads = 4}},
        {"mtp", {}, {}, {.key_heads = 4}}}},
      {"tensor",
       {{"tp1"},
        {"tp2", tp2, {}, {.tp = 2}},
        {"tp2sp", tp2 + sp, {}, {.tp = 2}},
        {"tp4", tp4, {}, {.tp = 4}},
        {"tp4sp", tp4 + sp, {}, {.tp = 4}}}},
      {"context",
       {{"cp1"},
        {"cp2heads", cp2 + ulysses, {}, {.cp = 2, .ulysses = true}},
        {"cp2gathered", cp2 + cp_all_gather, {}, {.cp = 2}},
        {"cp2ring", cp2 + cp_ring, {}, {.cp = 2}},
        {"cp4heads", cp4 + ulysses, {}, {.cp = 4, .ulysses = true}},
        {"cp4gathered", cp4 + cp_all_gather, {}, {.cp = 4}},
        {"cp4ring", cp4 + cp_ring, {}, {.cp = 4}}}},
      {"pipeline",
       {{"pp1"},
        {"pp2", pp2, {}, {.pp = 2}},
        {"pp2zb", pp2 + zero_bubble, {}, {.pp = 2}},
        {"pp2zbv", pp2 + zbv, {}, {.pp = 2}},
        {"pp2vp2", pp2 + vp2, {}, {.pp = 2}},
        {"pp4", pp4, {}, {.pp = 4}},
        {"pp4zb", pp4 + zero_bubble, {}, {.pp = 4}}}},
      {"layers", {{"even_stages"}, {"uneven_stages", {"dist.pipeline_model_parallel_layout=Et|t*2|t|L"}}}},
      {"microbatches", {{"groups_of_pp"}, {"groups_of_3", {"dist.microbatch_group_size_per_vp_stage=3"}}}},
      {"data", {{"dp1"}, {"dp2", {}, {}, {.dp = 2}}, {"dp4", {}, {}, {.dp = 4}}}},
      {"experts", {{"ep1"}, {"ep2", ep2, {}, {.ep = 2}}, {"ep4", ep4, {}, {.ep = 4}}, {"ep8", ep8, {}, {.ep = 8}}}},
      {"expert_tensor",
       {{"etp"}, {"etp1", etp1, {}, {.etp = 1}}, {"etp2", etp2, {}, {.etp = 2}}, {"etp4", etp4, {}, {.etp = 4}}}},
      {"key_heads",
       {{"some_groups"},
        {"one_group", {}, {"model.num_query_groups=1"}, {.other_key_heads = 1}},
        {"four_groups", {}, {"model.num_query_groups=4"}, {.other_key_heads = 4}}}},
      {"sharding", {{"unsharded"}, {"zero1", zero1}, {"zero2", zero2}, {"zero3", zero3}}},
      {"buckets", {{"large_buckets"}, {"small_buckets", buckets}}},
      {"gradients", {{"reduced_at_end"}, {"reduced_early", overlap}, {"reduced_and_gathered", gather}}},
      {"products", {{"products_whole"}, {"products_overlap", {"comm_overlap.tp_comm_overlap=true"}}}},
      {"stages", {{"stages_overlap"}, {"stages_wait", {"comm_overlap.overlap_p2p_comm=false"}}}},
      {"dispatcher", {{"experts_gathered"}, {"experts_exchanged", all_to_all}}},
      {"shared_expert", {{"shared_apart"}, {"shared_meanwhile", shared_overlap}}},
      {"expert_calls", {{"calls_apart"}, {"calls_together", together}}},
      {"recompute",
       {{"kept"},
        {"again", full},
        {"some_again", selective},
        {"two_again", uniform},
        {"one_again", block},
        {"up_again", up}}},
      {"offload", {{"on_device"}, {"offload", offload}, {"offload_blocks", offload_blocks}, {"offload_x", offload_x}}},
      {"documents", {{"whole"}, {"packed", {}, packed_documents}, {"dealt", dynamic, packed_documents}}},
      {"dropout", {{"no_dropout"}, {"dropout", {}, {"model.hidden_dropout=0.2", "model.attention_dropout=0.1"}}}},
      {"table", {{"table"}, {"tied", {}, {"model.untie_embeddings_and_output_weights=false"}}}},
      {"vocabulary",
       {{"words"}, {"padded", {}, {"model.pad_vocab_in_softmax=true", "model.make_vocab_size_divisible_by=16"}}}},
      {"latent_queries", {{"default_queries"}, {"full_queries", {}, {"model.mla.q_lora_rank=0"}}}},
      {"head_norm", {{"no_head_norm"}, {"head_norm", {}, {"model.qk_layernorm=true"}}}},
      {"head_bias", {{"no_head_bias"}, {"head_bias", {}, {"model.add_qkv_bias=true"}}}},
      {"window", {{"no_window"}, {"window", {}, {"model.window_size=5"}}}},
      {"ahead", {{"next_word"}, {"mtp1", {}, {"model.mtp_num_layers=1"}}}},
      {"precision",
       {{"fp32"},
        {"fp16", {}, {"mixed_precision.precision=fp16", "mixed_precision.initial_loss_scale=4096"}},
        {"bf16", {}, {"mixed_precision.precision=bf16"}}}},
      {"optimizer",
       {{"adam"},
        {"sgd", {}, {"optimizer.optimizer=sgd", "optimizer.sgd_momentum=0.9", "optimizer.lr=0.01"}},
        {"bf16_moments",
         {},
         {"optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16", "optimizer.adam_beta2=0.95"}}}},
      {"frozen", {{"all_learn"}, {"some_frozen", {}, {"model.freeze=['*.mlp.*']"}}}},
      {"batch",
       {{"microbatches_of_2"},
        {"microbatches_of_1", {}, {"train.micro_batch_size=1"}},
        {"microbatches_of_4", {}, {"train.micro_batch_size=4"}},
        {"growing", {}, growing}}},
  };
}

std::vector<Apart> make_apart() {
  using enum Apart::By;
  const Names dense{"llama", "gpt"}, moe{"experts", "expert_bias", "mla", "mtp"}, latent{"mla", "mtp"};
  return {
      {program,
       dense,
       {"ep2", "ep4", "ep8", "etp1", "etp2", "etp4", "experts_exchanged", "shared_meanwhile", "calls_together"}},
      {program, {"ep1"}, {"calls_together"}},
      {program,
       {"calls_together"},
       {"again", "two_again", "one_again", "offload", "offload_blocks", "offload_x", "zero3", "dealt"}},
      {program, {"unsharded"}, {"reduced_and_gathered"}},
      {program, {"again", "two_again"}, {"offload", "offload_blocks"}},
      {program, {"some_again", "up_again"}, {"offload"}},
      {program, {"gpt"}, {"mtp1"}},
      {program, {"llama", "gpt", "experts", "expert_bias"}, {"up_again"}},
      {program, {"pp1", "pp2", "pp2zb", "pp2zbv", "pp4", "pp4zb"}, {"groups_of_3"}},
      {program, latent, {"one_group", "head_norm"}},
      // These values would change nothing.
      {sense, {"cp1"}, {"dealt"}},
      {sense, {"llama", "gpt", "experts", "expert_bias"}, {"full_queries"}},
      // The layout string has the layers of four stages and one MTP layer.
      {sense, {"pp1", "pp2", "pp2zb", "pp2zbv", "pp2vp2"}, {"uneven_stages"}},
      {sense, {"mtp", "mtp1"}, {"uneven_stages"}},
      // Which experts are chosen would depend on how sums are rounded.
      {sense, moe, {"fp16", "bf16"}},
      // Without positions in keys, the gradient of their norm's bias is nothing but rounding errors.
      {sense, {"gpt"}, {"head_norm"}},
  };
}

// What a value sets in addition, beside certain others.
struct Beside {
  std::string one;
  Names others;
  Overrides model;
};

std::vector<Beside> make_besides() {
  const Overrides no_losses{"model.moe.router_load_balancing_type=none", "model.moe.aux_loss_coeff=0",
                            "model.moe.z_loss_coeff=0", "model.moe.router_enable_expert_bias=false"};
  return {{"dealt", {"experts", "expert_bias", "mla", "mtp"}, no_losses},
          {"some_frozen", {"llama", "experts", "expert_bias", "mla", "mtp"}, {"model.freeze=['*.mlp.*','*embed*']"}}};
}

const AxisValue* chosen(const Choice& choice, std::size_t axis) {
  const int value = choice[axis];
  return value == open ? nullptr : &sweep_axes()[axis].values[static_cast<std::size_t>(value)];
}

struct ValueIndex {
  std::size_t axis;
  int value;
};

ValueIndex index_of_value(const std::string& name) {
  const auto& axes = sweep_axes();
  for (std::size_t axis = 0; axis < axes.size(); ++axis)
    for (std::size_t value = 0; value < axes[axis].values.size(); ++value)
      if (axes[axis].values[value].name == name) return {axis, static_cast<int>(value)};
  fail("no value of an axis is called {}", name);
}

bool has(const Choice& choice, const std::string& name) {
  const auto [axis, value] = index_of_value(name);
  return choice[axis] == value;
}

SweepSizes sizes_of(const Choice& choice) {
  SweepSizes all;
  for (std::size_t axis = 0; axis < choice.size(); ++axis) {
    const AxisValue* const value = chosen(choice, axis);
    if (value == nullptr) continue;
    const SweepSizes& own = value->sizes;
    all = {.tp = all.tp * own.tp,
           .cp = all.cp * own.cp,
           .pp = all.pp * own.pp,
           .dp = all.dp * own.dp,
           .ep = all.ep * own.ep,
           .etp = all.etp + own.etp,
           .key_heads = all.key_heads + own.key_heads,
           .other_key_heads = all.other_key_heads + own.other_key_heads,
           .ulysses = all.ulysses || own.ulysses};
  }
  return all;
}

bool sizes_fit(const SweepSizes& all) {
  const int etp = all.etp > 0 ? all.etp : all.tp;
  const bool has_expert_view = all.ep > 1 || all.etp > 0;
  if (has_expert_view && all.tp * all.cp * all.dp % (all.ep * etp) != 0) return false;
  const int key_heads = all.other_key_heads > 0 ? all.other_key_heads : all.key_heads;
  return !all.ulysses || std::max(key_heads / all.tp, 1) % all.cp == 0;
}

// Pairs of values that go together, by the index of each among all values.
class Together {
 public:
  Together() {
    for (const SweepAxis& axis : sweep_axes()) {
      first_.push_back(values_);
      values_ += axis.values.size();
    }
    apart_.assign(values_ * values_, false);
    for (const Apart& rule : values_apart())
      for (const std::string& one : rule.one)
        for (const std::string& other : rule.other) {
          const ValueIndex a = index_of_value(one), b = index_of_value(other);
          apart_[index(a, b)] = apart_[index(b, a)] = true;
        }
  }
  bool allows(const Choice& choice, std::size_t axis) const {
    for (std::size_t other = 0; other < choice.size(); ++other)
      if (choice[other] != open && apart_[index({axis, choice[axis]}, {other, choice[other]})]) return false;
    return true;
  }

 private:
  std::size_t index(const ValueIndex& a, const ValueIndex& b) const {
    return (first_[a.axis] + static_cast<std::size_t>(a.value)) * values_ + first_[b.axis] +
           static_cast<std::size_t>(b.value);
  }
  std::vector<std::size_t> first_;
  std::size_t values_ = 0;
  std::vector<bool> apart_;
};

// Whether the values of an axis set sizes.
std::vector<bool> axes_with_sizes() {
  std::vector<bool> with;
  for (const SweepAxis& axis : sweep_axes())
    with.push_back(std::ranges::any_of(axis.values, [](const AxisValue& value) {
      const SweepSizes& s = value.sizes;
      return s.ranks() > 1 || s.ep > 1 || s.etp > 0 || s.key_heads + s.other_key_heads > 0;
    }));
  return with;
}

// `ranks`: how many there are; 0: any number up to the largest.
ChoiceRules rules_for(int ranks) {
  ChoiceRules rules;
  for (const SweepAxis& axis : sweep_axes()) rules.values.push_back(static_cast<int>(axis.values.size()));
  rules.allowed = [ranks, together = Together(), with_sizes = axes_with_sizes()](const Choice& choice, int last) {
    const auto axis = static_cast<std::size_t>(last);
    if (!together.allows(choice, axis)) return false;
    if (!with_sizes[axis]) return true;
    const SweepSizes sizes = sizes_of(choice);
    if (sizes.ranks() > (ranks > 0 ? ranks : max_ranks)) return false;
    for (std::size_t i = 0; i < choice.size(); ++i)
      if (with_sizes[i] && choice[i] == open) return true;  // known when all are chosen
    return sizes_fit(sizes) && (ranks == 0 || sizes.ranks() == ranks);
  };
  return rules;
}

SweepLimits limits_of(const Choice& choice, std::int64_t terms) {
  SweepLimits limits{.terms = terms};
  // Partial sums are rounded before they are added over ranks, and every rounding of an activation propagates through
  // the layers after it: several units.
  if (has(choice, "fp16")) limits = {.loss = 5e-4, .norm = 5e-3, .gradients = DType::f16, .slack = 8, .terms = terms};
  if (has(choice, "bf16")) limits = {.loss = 5e-3, .norm = 5e-2, .gradients = DType::bf16, .slack = 8, .terms = terms};
  limits.same_rows = !has(choice, "dealt");
  return limits;
}

}  // namespace

const std::vector<SweepAxis>& sweep_axes() {
  static const std::vector<SweepAxis> axes = make_axes();
  return axes;
}

std::vector<std::string> sweep_models() {
  std::vector<std::string> models;
  for (const AxisValue& value : sweep_axes().front().values) models.push_back(value.name);
  return models;
}

const std::vector<Apart>& values_apart() {
  static const std::vector<Apart> apart = make_apart();
  return apart;
}

ChoiceRules sweep_rules() { return rules_for(0); }

Choice choice_of(const Names& names) {
  Choice choice(sweep_axes().size(), open);
  for (const std::string& name : names) {
    const auto [axis, value] = index_of_value(name);
    choice[axis] = value;
  }
  return choice;
}

std::string describe(const Choice& choice) {
  Names names;
  for (std::size_t axis = 0; axis < choice.size(); ++axis)
    if (axis == 0 || choice[axis] > 0)
      if (const AxisValue* const value = chosen(choice, axis)) names.push_back(value->name);
  return joined(names, " ");
}

DrawnLayout drawn_layout(const Choice& complete) {
  DrawnLayout drawn{.name = describe(complete), .model = chosen(complete, 0)->name};
  Overrides model = common, layout;
  for (std::size_t axis = 0; axis < complete.size(); ++axis) {
    const AxisValue& value = *chosen(complete, axis);
    model = model + value.model;
    layout = layout + value.layout;
  }
  static const std::vector<Beside> besides = make_besides();
  for (const Beside& beside : besides)
    if (has(complete, beside.one) &&
        std::ranges::any_of(beside.others, [&](const std::string& other) { return has(complete, other); }))
      model = model + beside.model;
  drawn.alone = {.config = "sweep_" + drawn.model, .overrides = model};
  drawn.shared = drawn.alone;
  drawn.shared.ranks = sizes_of(complete).ranks();
  drawn.shared.overrides = model + layout;
  const tera::Setup setup = sweep_setup(drawn.alone);
  drawn.limits = limits_of(complete, setup.batch.global_batch * setup.batch.seq_length);
  return drawn;
}

std::vector<Choice> one_layout_per_value() {
  const ChoiceRules rules = sweep_rules();
  std::vector<Choice> all;
  for (const Choice& single : single_values(rules)) {
    const Choice complete = *completed(rules, single);
    if (std::ranges::find(all, complete) == all.end()) all.push_back(complete);
  }
  return all;
}

std::vector<Choice> all_pairs() {
  const ChoiceRules rules = sweep_rules();
  return covering_list(rules, pairs_of_values(rules), seed);
}

std::vector<Choice> every_value(int ranks) {
  const ChoiceRules rules = rules_for(ranks);
  return covering_list(rules, single_values(rules), seed);
}

}  // namespace tera::test
