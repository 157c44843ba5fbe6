#include "apps/command.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace tera {

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::hidden() {
  option_->group("");
  return *this;
}

Option& Option::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option& Option::capture_default_str() {
  option_->capture_default_str();
  return *this;
}

Option& Option::range(std::int64_t min, std::int64_t max) {
  option_->check(CLI::Range(min, max));
  return *this;
}

Option& Option::range(double min, double max) {
  option_->check(CLI::Range(min, max));
  return *this;
}

Option& Option::needs(const Option& other) {
  option_->needs(other.option_);
  return *this;
}

Option& Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}

Command Command::add_subcommand(const std::string& name, const std::string& meaning) {
  return Command(app_->add_subcommand(name, meaning));
}

template <OptionValue Value>
Option Command::add_option(const std::string& name, Value& value, const std::string& meaning) {
  return Option(app_->add_option(name, value, meaning));
}

template Option Command::add_option(const std::string&, std::string&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template Option Command::add_option(const std::string&, int&, const std::string&);
template Option Command::add_option(const std::string&, std::int64_t&, const std::string&);
template Option Command::add_option(const std::string&, std::uint64_t&, const std::string&);
template Option Command::add_option(const std::string&, float&, const std::string&);
template Option Command::add_option(const std::string&, double&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<int>&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<double>&, const std::string&);

Option Command::add_flag(const std::string& name, bool& value, const std::string& meaning) {
  return Option(app_->add_flag(name, value, meaning));
}

void Command::require_subcommand() { app_->require_subcommand(1); }

void Command::footer(std::function<std::string()> text) { app_->footer(std::move(text)); }

void Command::callback(std::function<void()> run) { app_->callback(std::move(run)); }

bool Command::has_parsed_subcommand() const { return !app_->get_subcommands().empty(); }

}  // namespace tera
