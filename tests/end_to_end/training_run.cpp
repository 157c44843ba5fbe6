#include "tests/end_to_end/training_run.h"

#include "tera/base/signals.h"
#include "tests/support/paths.h"

namespace tera::test {
namespace {

class Recorder final : public MetricsSink {
 public:
  explicit Recorder(RunRecord& record) : record_(record) {}
  void step(const StepMetrics& metrics) override {
    record_.loss.push_back(metrics.number("loss"));
    record_.grad_norm.push_back(metrics.number("grad_norm"));
    record_.lr.push_back(metrics.number("lr"));
    record_.skipped.push_back(metrics.is_set("skipped"));
    if (const auto losses = metrics.maybe("mtp_loss")) record_.mtp_loss.push_back(*losses);
    if (const auto scale = metrics.maybe("loss_scale")) record_.loss_scale.push_back(*scale);
  }
  void eval(const EvalMetrics& metrics) override { record_.eval_loss.push_back(metrics.eval_loss); }

 private:
  RunRecord& record_;
};

}  // namespace

Setup load_setup(const std::string& config, const std::vector<std::string>& overrides, Purpose purpose) {
  std::vector<std::string> all{"dist.device=cpu"};  // whatever this machine has; an override may say otherwise
  all.insert(all.end(), overrides.begin(), overrides.end());
  const LoadedConfig loaded = load_config(source_path("configs/tests/") + config + ".yaml", all);
  return resolve(loaded.config, purpose, &loaded.origins);
}

RunRecord train_once(const std::string& config, const std::vector<std::string>& overrides,
                     const BackendOptions& options, std::optional<Reporting> when) {
  const Setup setup = load_setup(config, overrides);
  StopRequest stop;
  Log log({.console = -1});
  Backend backend = make_backend(setup.config.dist, options);
  Trainer trainer(setup, backend, make_data_source(setup), log);
  if (when) trainer.report_late(*when == Reporting::late);
  RunRecord record;
  trainer.add_sink(std::make_unique<Recorder>(record));
  trainer.run(stop);
  record.weights = read_weights(trainer.step().params(), *backend.ops);
  return record;
}

std::vector<float> read_weights(ParamStore& params, Ops& ops) {
  std::vector<float> all;
  for (const Param* param : params.by_name()) {
    for (const auto& part : param->spec.parts) {
      const std::vector<float> values = read_part(ops, param->value, part);
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

}  // namespace tera::test
