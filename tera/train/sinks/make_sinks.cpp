#include "tera/train/sinks/make_sinks.h"

#include "tera/train/sinks/console.h"
#include "tera/train/sinks/tensorboard.h"

namespace tera {

std::vector<std::unique_ptr<MetricsSink>> make_sinks(const Setup& setup, const std::filesystem::path& folder,
                                                     AppendFile::Start start, Log& log) {
  const LoggerConfig& logger = setup.config.logger;
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  sinks.push_back(std::make_unique<JsonlSink>(folder / "metrics.jsonl", start));
  if (!logger.tensorboard_dir.empty()) sinks.push_back(std::make_unique<TensorboardSink>(logger.tensorboard_dir));
  sinks.push_back(std::make_unique<ConsoleSink>(
      log, ConsoleSink::Options{.total_steps = setup.batch.train_iters, .log_interval = logger.log_interval}));
  return sinks;
}

}  // namespace tera
