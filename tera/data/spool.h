#pragma once
// Bytes put aside to be read again once, from the front: in memory while they are few, then in a file without a name,
// which is gone when the process is.

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
  // The file lies in this folder. `memory` is how much is kept before it is written.
  explicit Spool(std::filesystem::path folder, std::size_t memory = std::size_t{1} << 20);

  void put(std::span<const std::byte> bytes);
  std::uint64_t size() const { return spilled_ + pending_.size(); }
  // All bytes, in pieces; elements of up to 8 bytes that were put whole come whole.
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
