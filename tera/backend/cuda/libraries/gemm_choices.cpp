#include "tera/backend/cuda/libraries/gemm_choices.h"

#include <nlohmann/json.hpp>

#include "tera/base/error.h"
#include "tera/base/file.h"

namespace tera::cuda {

using nlohmann::json;

namespace {
constexpr std::size_t max_bytes = std::size_t{1} << 20;
}

GemmChoices::GemmChoices(std::filesystem::path file, Environment environment)
    : file_(std::move(file)), environment_(std::move(environment)) {
  if (!file_.empty() && path_exists(file_)) load();
}

void GemmChoices::load() {
  const json root = json::parse(read_whole_file(file_, max_bytes), nullptr, /*allow_exceptions=*/false);
  const auto bad = [&] { fail_user("{}: is no file of kernel choices; remove it to choose anew", file_.string()); };
  if (!root.is_object() || !root.contains("gpu") || !root["gpu"].is_string() || !root.contains("cublaslt") ||
      !root["cublaslt"].is_number_unsigned() || !root.contains("options") || !root["options"].is_string() ||
      !root.contains("gemm") || !root["gemm"].is_object())
    bad();
  const Environment made_in{root["gpu"].get<std::string>(), root["cublaslt"].get<std::size_t>(),
                            root["options"].get<std::string>()};
  from_elsewhere_ = made_in != environment_;
  if (from_elsewhere_) return;
  for (const auto& [problem, candidate] : root["gemm"].items()) {
    if (!candidate.is_number_unsigned()) bad();
    candidates_[problem] = candidate.get<std::size_t>();
  }
}

std::optional<std::size_t> GemmChoices::find(const std::string& problem) const {
  const auto found = candidates_.find(problem);
  return found == candidates_.end() ? std::nullopt : std::optional(found->second);
}

void GemmChoices::set(const std::string& problem, std::size_t candidate) {
  candidates_[problem] = candidate;
  changed_ = true;
}

void GemmChoices::save() {
  if (file_.empty() || !changed_) return;
  if (file_.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(file_.parent_path(), error);
    require_user(!error, "{}: {}", file_.parent_path().string(), error.message());
  }
  const json root{{"gpu", environment_.gpu},
                  {"cublaslt", environment_.library},
                  {"options", environment_.options},
                  {"gemm", candidates_}};
  write_file_atomically(file_, root.dump(1) + "\n");
  changed_ = false;
}

}  // namespace tera::cuda
