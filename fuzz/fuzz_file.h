#pragma once
// Gives parsers that read only files a file with the input; it has the same path every time, in memory if possible.

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

namespace tera::fuzz {

class FuzzFolder {
 public:
  FuzzFolder() {
    struct stat info {};
    std::string name = ::stat("/dev/shm", &info) == 0 ? "/dev/shm/tera-fuzz-XXXXXX" : "/tmp/tera-fuzz-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) ::abort();
    path_ = name;
  }
  FuzzFolder(const FuzzFolder&) = delete;
  FuzzFolder& operator=(const FuzzFolder&) = delete;
  ~FuzzFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string write(const char* name, std::span<const std::uint8_t> bytes) const {
    const std::string path = path_ / name;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Aborts unless an invariant holds, which must not depend on the input.
inline void must(bool holds) {
  if (!holds) ::abort();
}

}  // namespace tera::fuzz
