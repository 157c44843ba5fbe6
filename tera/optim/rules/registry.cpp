// Every update rule, one line each.

#include "tera/base/error.h"
#include "tera/optim/rules/rule.h"

namespace tera {

std::unique_ptr<UpdateRule> make_update_rule(const OptimizerConfig& config) {
  switch (config.optimizer) {
    case OptimizerKind::adam: return make_adam(config);
    case OptimizerKind::sgd: return make_sgd(config);
  }
  fail("no rule for optimizer {}", name_of(config.optimizer));
}

}  // namespace tera
