#include "tera/data/indexed/spool.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

#include "tera/base/error.h"

namespace tera {
namespace {

[[noreturn]] void fail_in(const std::filesystem::path& folder) {
  fail_user("cannot keep temporary data in {}: {}", folder.string(), std::generic_category().message(errno));
}

FileDescriptor open_nameless(const std::filesystem::path& folder) {
  FileDescriptor file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file) return file;
  std::string name = (folder / "tera-spool-XXXXXX").string();  // not every file system has files without names
  file = FileDescriptor(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) fail_in(folder);
  ::unlink(name.c_str());
  return file;
}

}  // namespace

Spool::Spool(std::filesystem::path folder, std::size_t memory)
    : folder_(folder.empty() ? "." : std::move(folder)), memory_(memory) {}

void Spool::put(std::span<const std::byte> bytes) {
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
  if (pending_.size() >= memory_) spill();
}

void Spool::spill() {
  if (!file_) file_ = open_nameless(folder_);
  for (std::size_t done = 0; done < pending_.size();) {
    const ssize_t n =
        ::pwrite(file_.get(), pending_.data() + done, pending_.size() - done, static_cast<off_t>(spilled_ + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_in(folder_);
    done += static_cast<std::size_t>(n);
  }
  spilled_ += pending_.size();
  pending_.clear();
}

void Spool::replay(const std::function<void(std::span<const std::byte>)>& take) const {
  std::vector<std::byte> piece(std::min<std::uint64_t>(spilled_, std::uint64_t{1} << 20));
  for (std::uint64_t offset = 0; offset < spilled_;) {
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(spilled_ - offset, piece.size()));
    for (std::size_t done = 0; done < wanted;) {
      const ssize_t n = ::pread(file_.get(), piece.data() + done, wanted - done, static_cast<off_t>(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail_in(folder_);
      done += static_cast<std::size_t>(n);
    }
    take(std::span(piece).first(wanted));
    offset += wanted;
  }
  take(pending_);
}

}  // namespace tera
