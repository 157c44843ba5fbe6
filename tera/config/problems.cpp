#include "tera/config/problems.h"

#include <algorithm>

#include "tera/base/error.h"

namespace tera {

void Problems::throw_if_any() const {
  constexpr std::size_t shown = 50;  // a file of another format would give a problem per line
  if (lines_.empty()) return;
  if (lines_.size() == 1) throw UserError(lines_.front());
  std::string message = fmt::format("the configuration has {} problems:", lines_.size());
  for (std::size_t i = 0; i < std::min(lines_.size(), shown); ++i) message += "\n  " + lines_[i];
  if (lines_.size() > shown) message += fmt::format("\n  and {} more", lines_.size() - shown);
  throw UserError(message);
}

}  // namespace tera
