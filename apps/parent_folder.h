#pragma once
// Creates the folders of output files.

#include <filesystem>
#include <string_view>

#include "tera/base/error.h"

namespace tera {

// `option` is for the message.
inline void make_parent_folder(std::string_view option, const std::filesystem::path& file) {
  std::error_code error;
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), error);
  require_user(!error, "{} {}: cannot make its folder: {}", option, file.string(), error.message());
}

}  // namespace tera
