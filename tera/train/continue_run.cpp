#include "tera/train/continue_run.h"

#include "tera/config/resolve.h"

namespace tera {
namespace {

Setup resolve_again(const Setup& setup, const RunConfig& config, const Behind& behind) {
  Setup continued = resolve(config, Purpose::train, nullptr, setup.parallel.mesh.world, behind);
  continued.warnings = setup.warnings;  // some are not of resolve()
  return continued;
}

}  // namespace

Setup continue_run(const Setup& setup, StartPoint& start) {
  if (!start.resumed()) return setup;
  const Behind behind{.steps = start.progress.steps, .samples = start.progress.consumed};
  return resolve_again(setup, setup.config, behind);
}

}  // namespace tera
