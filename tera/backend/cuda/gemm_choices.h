#pragma once
// The file that remembers which candidate each matrix product got: timing differs from run to run, and with it the last
// bits, so a run times once and a resumed one repeats the choice.

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace tera::cuda {

class GemmChoices {
 public:
  // What the numbers of candidates refer to; choices made elsewhere are left aside.
  struct Place {
    std::string gpu;
    std::size_t library = 0;
    std::string options;  // that the library's list of candidates depends on
    bool operator==(const Place&) const = default;
  };

  GemmChoices(std::filesystem::path file, Place place);  // an empty path: nothing is kept

  std::optional<std::size_t> find(const std::string& problem) const;
  void set(const std::string& problem, std::size_t candidate);
  void save();                                             // if anything was set
  bool from_elsewhere() const { return from_elsewhere_; }  // there was a file, made in another place

 private:
  void load();

  std::filesystem::path file_;
  Place place_;
  std::map<std::string, std::size_t> candidates_;
  bool changed_ = false, from_elsewhere_ = false;
};

}  // namespace tera::cuda
