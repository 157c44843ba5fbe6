#pragma once
// What a rank computes with. setup.cpp is the only place that names backends.

#include <memory>

#include "tera/config/dist.h"
#include "tera/ops/ops.h"
#include "tera/ops/workspace.h"
#include "tera/tensor/device.h"

namespace tera {

struct Backend {
  std::string name;  // "cpu: 2 threads, avx512"
  std::unique_ptr<Device> device;
  std::unique_ptr<WorkspaceRules> rules;
  std::unique_ptr<Ops> ops;
};

Backend make_backend(const DistConfig& config);

// The rules alone, for a plan of a machine that need not be this one.
std::unique_ptr<WorkspaceRules> make_workspace_rules(const DistConfig& config);

}  // namespace tera
