#pragma once
// The file of the kernels chosen for each GEMM (autotuning): timing differs from run to run, and with it the last bits,
// so a run times once and a resumed one repeats the choice.

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace tera::cuda {

class GemmChoices {
 public:
  // What the numbers of candidates refer to; choices made in another environment are ignored.
  struct Environment {
    std::string gpu;
    std::size_t library = 0;
    std::string options;  // that the library's list of candidates depends on
    bool operator==(const Environment&) const = default;
  };

  GemmChoices(std::filesystem::path file, Environment environment);  // an empty path: nothing is kept

  std::optional<std::size_t> find(const std::string& problem) const;
  void set(const std::string& problem, std::size_t candidate);
  void save();                                             // if anything was set
  bool from_elsewhere() const { return from_elsewhere_; }  // there was a file, made in another environment

 private:
  void load();

  std::filesystem::path file_;
  Environment environment_;
  std::map<std::string, std::size_t> candidates_;
  bool changed_ = false, from_elsewhere_ = false;
};

}  // namespace tera::cuda
