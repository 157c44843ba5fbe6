#pragma once
// Two kinds of failure. UserError: the config, file or argument given is wrong; tera prints the message and exits
// with 2. Error: a broken invariant of this program; tera prints message and source location and exits with 1.

#include <fmt/core.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace tera {

class Error : public std::runtime_error {
 public:
  Error(const std::string& message, std::source_location where);
  using std::runtime_error::runtime_error;  // a message that has its location already
};

class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A fault that was reported already; only the exit status remains.
class AlreadyReported : public std::exception {
 public:
  explicit AlreadyReported(int status) : status_(status) {}
  int status() const { return status_; }
  const char* what() const noexcept override { return "a fault that was reported already"; }

 private:
  int status_;
};

// A format string with its source location, so that require() needs no macro.
template <class... Args>
struct LocatedFormat {
  template <class S>
  consteval LocatedFormat(const S& format, std::source_location here = std::source_location::current())
      : text(format), where(here) {}
  fmt::format_string<Args...> text;
  std::source_location where;
};

[[noreturn]] void throw_error(fmt::string_view format, fmt::format_args args, std::source_location where);
[[noreturn]] void throw_user_error(fmt::string_view format, fmt::format_args args);

// Checks an invariant of this program. Arguments are evaluated even when it holds: where one is costly (a string),
// write `if (!holds) fail(...)`.
template <class... Args>
void require(bool holds, LocatedFormat<std::type_identity_t<Args>...> format, const Args&... args) {
  if (!holds) [[unlikely]]
    throw_error(format.text, fmt::make_format_args(args...), format.where);
}

template <class... Args>
[[noreturn]] void fail(LocatedFormat<std::type_identity_t<Args>...> format, const Args&... args) {
  throw_error(format.text, fmt::make_format_args(args...), format.where);
}

// Checks input of the user.
template <class... Args>
void require_user(bool holds, fmt::format_string<std::type_identity_t<Args>...> format, const Args&... args) {
  if (!holds) [[unlikely]]
    throw_user_error(format, fmt::make_format_args(args...));
}

template <class... Args>
[[noreturn]] void fail_user(fmt::format_string<std::type_identity_t<Args>...> format, const Args&... args) {
  throw_user_error(format, fmt::make_format_args(args...));
}

}  // namespace tera
