#pragma once
// Text on disk: resolves a list of paths to files, and reads them, checked.

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

// Each path is a file, a folder (all files below it, sorted, names that start with a dot left out) or a pattern with
// * ? [] (its matches, sorted). One that finds nothing is an error, which names the option that the paths come from.
std::vector<std::filesystem::path> find_text_files(std::span<const std::string> paths,
                                                   std::string_view option = "dataset.data_path");

// The file's text; an empty file and one that is not UTF-8 are errors, the latter with line and byte.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace tera
