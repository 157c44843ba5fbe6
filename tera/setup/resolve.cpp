#include "tera/setup/resolve.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "tera/base/gpu_limits.h"
#include "tera/config/catalog.h"
#include "tera/config/value.h"
#include "tera/setup/report.h"
#include "tera/setup/resolve_batch.h"
#include "tera/setup/resolve_data.h"
#include "tera/setup/resolve_model.h"
#include "tera/setup/resolve_parallel.h"

namespace tera {
namespace {

// Checks every value against its own limits. Returns the sections without violations: rules between keys are checked
// only there, so that they can rely on valid values.
std::set<std::string> check_values(const RunConfig& config, Report& report) {
  std::set<std::string> sane;
  for (const Field& section : RunConfig::fields()) sane.emplace(section.name);
  for_each_value(config, [&](const std::string& key, const Field& field, const void* value) {
    const std::string written = write_value(field, value);
    if (field.required && (written == "0" || written == "null")) {
      report.missing(key, "expected: {}", describe_type(field));
    } else if (const std::string wrong = check_limits(field, value); !wrong.empty()) {
      report.broken(key, "{}", wrong);
      sane.erase(key.substr(0, key.find('.')));
    }
  });
  return sane;
}

std::string resolve_run_dir(const RunSection& run, Report& report) {
  if (!run.dir.empty()) return run.dir;
  const std::string name = run.name.empty() ? "run" : run.name;
  if (name.find('/') != std::string::npos || name == "." || name == "..")
    report.broken("run.name", "must be a plain name, since the run writes to runs/<name>; or give run.dir");
  return "runs/" + name;
}

void check_gpu(const RunConfig& config, const ModelShape& model, Report& report) {
  if (config.dist.device != DeviceChoice::cuda || model.head_dim <= max_gpu_head_size) return;
  if (model.mla)
    return report.broken("model.mla.qk_head_dim",
                         "attention on a GPU takes heads of up to {} channels, and with qk_pos_emb_head_dim these have "
                         "{}; fewer, or dist.device=cpu",
                         max_gpu_head_size, model.head_dim);
  const bool given = config.model.kv_channels > 0;
  report.broken(given ? "model.kv_channels" : "model.num_attention_heads",
                "attention on a GPU takes heads of up to {} channels, not {}; {} or dist.device=cpu", max_gpu_head_size,
                model.head_dim, given ? "fewer" : "more heads, model.kv_channels");
}

void check_loss_scale(const MixedPrecisionConfig& config, Report& report) {
  if (config.loss_scale > 0 && config.loss_scale < 1e-6)
    report.broken("mixed_precision.loss_scale", "must be 0, or at least 1e-06");
  if (config.min_loss_scale > config.initial_loss_scale)
    report.broken("mixed_precision.min_loss_scale", "must be at most {}",
                  report.with_value("mixed_precision.initial_loss_scale"));
}

// bf16 has 8 significant bits: a step that changes a moment by less than 1/512 of it changes nothing. With this decay
// and steady gradients a moment that rises stops at 80 % of its value, with a larger one earlier (docs/numerics.md).
constexpr double max_bf16_decay = 0.99;

struct MomentRule {
  std::string_view key;
  MomentType type;
  std::string_view decay_key;
  double decay, default_decay;
};

void check_moments(const OptimizerConfig& config, Setup& setup, Report& report) {
  for (const auto& [key, type, decay_key, decay, default_decay] :
       {MomentRule{"optimizer.exp_avg_dtype", config.exp_avg_dtype, "optimizer.adam_beta1", config.adam_beta1, 0.9},
        MomentRule{"optimizer.exp_avg_sq_dtype", config.exp_avg_sq_dtype, "optimizer.adam_beta2", config.adam_beta2,
                   0.95}}) {
    if (type == MomentType::fp32) continue;
    if (config.optimizer == OptimizerKind::sgd)
      report.broken(key, "sgd has no such moment, and its momentum is always fp32; leave it out");
    else if (decay > max_bf16_decay)
      setup.warnings.push_back(fmt::format(
          "{} is bf16, and {} is {}: what a step changes is often lost in rounding, so that the moment stops short; "
          "set {}={}, or {}=fp32",
          key, decay_key, decay, decay_key, default_decay, key));
  }
}

}  // namespace

Setup resolve(const RunConfig& config, Purpose purpose, const Origins* origins, int world, const ResumeOffset& resume) {
  Report report(config, origins);
  const std::set<std::string> sane = check_values(config, report);
  const bool train_sane = sane.contains("train");
  Setup setup;
  setup.config = config;
  if (sane.contains("dist") && sane.contains("ddp")) setup.parallel = resolve_parallel(config, world, purpose, report);
  if (train_sane && sane.contains("model")) setup.model = resolve_model(config, setup.parallel.mesh.tp, report);
  check_gpu(config, setup.model, report);
  if (train_sane) setup.batch = resolve_batch(config.train, setup.parallel.dp, purpose, resume, report);
  setup.batch.packs_documents = config.dataset.reset_attention_mask || config.dataset.kind == DatasetKind::sft;
  if (train_sane && sane.contains("model")) check_split(setup.parallel, setup.model, setup.batch, report);
  if (train_sane && sane.contains("dist")) resolve_dynamic_context(config, setup, report);
  if (train_sane && sane.contains("optimizer") && sane.contains("scheduler"))
    setup.schedule = resolve_schedule(config, setup.batch, purpose, report);
  if (sane.contains("mixed_precision")) check_loss_scale(config.mixed_precision, report);
  if (sane.contains("optimizer")) check_moments(config.optimizer, setup, report);
  setup.split = resolve_split(config.dataset.split, report);
  setup.indexed = resolve_indexed(config, purpose, report);
  check_data_path(config.dataset, purpose, report);
  setup.run_dir = resolve_run_dir(config.run, report);
  report.throw_if_any();
  return setup;
}

int smallest_world(const RunConfig& config) {
  const auto clamped = [](std::int64_t size) { return std::clamp(size, std::int64_t{1}, std::int64_t{max_ranks}); };
  const DistConfig& dist = config.dist;
  const std::int64_t tp = clamped(dist.tensor_model_parallel_size);
  const std::int64_t dense = clamped(tp * clamped(dist.context_parallel_size));
  const std::int64_t etp = dist.expert_tensor_parallel_size == 0 ? tp : clamped(dist.expert_tensor_parallel_size);
  const std::int64_t stage = clamped(std::lcm(dense, clamped(etp * clamped(dist.expert_model_parallel_size))));
  return static_cast<int>(clamped(stage * clamped(dist.pipeline_model_parallel_size)));
}

}  // namespace tera
