#pragma once
// The configuration of a run as the user wrote it. resolve() derives a Setup from it (tera/config/setup.h).

#include "tera/config/sections/checkpoint.h"
#include "tera/config/sections/comm_overlap.h"
#include "tera/config/sections/dataset.h"
#include "tera/config/sections/ddp.h"
#include "tera/config/sections/dist.h"
#include "tera/config/sections/logger.h"
#include "tera/config/sections/mixed_precision.h"
#include "tera/config/sections/model.h"
#include "tera/config/sections/optimizer.h"
#include "tera/config/sections/run.h"
#include "tera/config/sections/scheduler.h"
#include "tera/config/sections/tokenizer.h"
#include "tera/config/sections/train.h"

namespace tera {

struct RunConfig {
  ModelConfig model;
  DistConfig dist;
  TrainConfig train;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  DdpConfig ddp;
  CommOverlapConfig comm_overlap;
  MixedPrecisionConfig mixed_precision;
  DatasetConfig dataset;
  TokenizerConfig tokenizer;
  CheckpointConfig checkpoint;
  LoggerConfig logger;
  RunSection run;

  static std::span<const Field> fields();
  bool operator==(const RunConfig&) const = default;
};

}  // namespace tera
