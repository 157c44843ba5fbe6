#pragma once
// Collects broken rules, with the key, its value and where the value was set.

#include <fmt/core.h>

#include <string>
#include <string_view>

#include "tera/config/problems.h"
#include "tera/setup/load.h"

namespace tera {

class Report {
 public:
  Report(const RunConfig& config, const Origins* origins) : config_(config), origins_(origins) {}

  // "model.hidden_size=100 (tiny.yaml:4): must be ..."
  template <class... Args>
  void broken(std::string_view key, fmt::format_string<Args...> rule, Args&&... args) {
    problems_.add("{}: {}", with_value(key), fmt::format(rule, std::forward<Args>(args)...));
  }
  template <class... Args>
  void missing(std::string_view key, fmt::format_string<Args...> what, Args&&... args) {
    problems_.add("{}; {}", how_missing(key), fmt::format(what, std::forward<Args>(args)...));
  }

  // Reports a problem that belongs to no key.
  template <class... Args>
  void add(fmt::format_string<Args...> what, Args&&... args) {
    problems_.add(what, std::forward<Args>(args)...);
  }

  // "model.hidden_size=100 (tiny.yaml:4)", for rules that involve two keys.
  std::string with_value(std::string_view key) const;

  void throw_if_any() const { problems_.throw_if_any(); }

 private:
  // "optimizer.lr is not given", or "optimizer.lr=0 (command line): must not be 0" if a source sets it.
  std::string how_missing(std::string_view key) const;
  std::string value_of(std::string_view key) const;  // as YAML; empty if there is no such key

  const RunConfig& config_;
  const Origins* origins_;
  Problems problems_;
};

}  // namespace tera
