#pragma once
// A spool file: bytes that are written now and read once later, from the front. They are in memory while they are few,
// then in a file without a name, which is gone when the process is.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "tera/base/file.h"

namespace tera {

class Spool {
 public:
  // The file is made in this folder, once more than `memory` bytes were put.
  explicit Spool(std::filesystem::path folder, std::size_t memory = std::size_t{1} << 20);

  void put(std::span<const std::byte> bytes);
  std::uint64_t size() const { return spilled_ + pending_.size(); }
  // All bytes, in pieces; an element of up to 8 bytes that was put in one call is not cut.
  void replay(const std::function<void(std::span<const std::byte>)>& take) const;

 private:
  void spill();

  std::filesystem::path folder_;
  std::size_t memory_;
  std::vector<std::byte> pending_;
  std::uint64_t spilled_ = 0;
  FileDescriptor file_;
};

}  // namespace tera
