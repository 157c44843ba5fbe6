#pragma once
// Collects what is wrong with a configuration, so that all of it is told at once.

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

  // One UserError with a line for each problem; nothing when there is none.
  void throw_if_any() const;

 private:
  std::vector<std::string> lines_;
};

}  // namespace tera
