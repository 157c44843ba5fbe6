#pragma once
// Collects the errors of a configuration, so that all are reported at once.

#include <fmt/core.h>

#include <string>
#include <vector>

namespace tera {

class Problems {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  bool empty() const { return lines_.empty(); }
  const std::vector<std::string>& lines() const { return lines_; }

  // Throws one UserError with a line for each problem, if there is any.
  void throw_if_any() const;

 private:
  std::vector<std::string> lines_;
};

}  // namespace tera
