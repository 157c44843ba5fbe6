#pragma once
// The command line as subcommands see it. It wraps CLI11, but only command.cpp and tera.cpp include that: its
// header takes as long to compile as a whole subcommand.

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tera {

template <class Value, class... Types>
concept OneOf = (std::same_as<Value, Types> || ...);

// The types that an option may be bound to; command.cpp instantiates the code for each.
template <class Value>
concept OptionValue = OneOf < Value,
        std::string, std::vector<std::string>,
int, std::int64_t, std::uint64_t, float, double, std::optional<int>, std::optional < double >> ;

// Option and Command are handles: the program owns what they refer to.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option& required();
  Option& hidden();  // not shown in the help
  Option& type_name(const std::string& name);
  Option& capture_default_str();  // the help then shows the value that the variable has now
  Option& range(std::int64_t min, std::int64_t max);
  Option& range(double min, double max);
  Option& needs(const Option& other);
  Option& excludes(const Option& other);

 private:
  CLI::Option* option_;
};

class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command add_subcommand(const std::string& name, const std::string& meaning);
  // "--name", "--name,--other", or a plain name for what needs none.
  template <OptionValue Value>
  Option add_option(const std::string& name, Value& value, const std::string& meaning);
  Option add_flag(const std::string& name, bool& value, const std::string& meaning);
  void require_subcommand();
  void footer(std::function<std::string()> text);  // below the help
  void callback(std::function<void()> run);
  bool has_parsed_subcommand() const;

 private:
  CLI::App* app_;
};

}  // namespace tera
