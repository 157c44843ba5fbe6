#pragma once
// Everything the user can say about a run, as written. What follows from it is a Setup (tera/config/setup.h).

#include "tera/config/checkpoint.h"
#include "tera/config/comm_overlap.h"
#include "tera/config/dataset.h"
#include "tera/config/ddp.h"
#include "tera/config/dist.h"
#include "tera/config/logger.h"
#include "tera/config/mixed_precision.h"
#include "tera/config/model.h"
#include "tera/config/optimizer.h"
#include "tera/config/run.h"
#include "tera/config/scheduler.h"
#include "tera/config/tokenizer.h"
#include "tera/config/train.h"

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
