#include "tera/base/error.h"

#include <fmt/core.h>

#include <string_view>

namespace tera {
namespace {

// The file's name without its folder, since paths differ from build to build.
std::string_view file_name(std::string_view path) { return path.substr(path.find_last_of('/') + 1); }

}  // namespace

Error::Error(const std::string& message, std::source_location where)
    : std::runtime_error(fmt::format("{} ({}:{})", message, file_name(where.file_name()), where.line())) {}

void throw_error(fmt::string_view format, fmt::format_args args, std::source_location where) {
  throw Error(fmt::vformat(format, args), where);
}

void throw_user_error(fmt::string_view format, fmt::format_args args) { throw UserError(fmt::vformat(format, args)); }

}  // namespace tera
