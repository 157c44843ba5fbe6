#pragma once
// Files: every failure is a UserError that names the path and the reason.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tera {

// An open file; closes itself, moves, does not copy.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { close(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();
  void close();

 private:
  int fd_ = -1;
};

constexpr std::size_t direct_block_bytes = 4096;  // alignment of addresses, offsets and sizes for direct I/O

// False only if the path does not exist; a UserError if that is not known (a path too long, an unreadable folder).
bool path_exists(const std::filesystem::path& path);

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

// Makes a new or renamed entry of the folder that `path` lies in survive a power cut, where the file system can.
void sync_parent_folder(const std::filesystem::path& path);

// The content of a file. More than max_bytes is an error, so that a wrong path cannot fill the memory.
std::string read_whole_file(const std::filesystem::path& path, std::size_t max_bytes);

// Writes to a temporary name in the same folder; commit() syncs and renames, so that readers see the old file or the
// complete new one. Without commit() (an exception, a full disk) the temporary file is removed.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();
  const std::filesystem::path& path() const { return path_; }
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  void sync();  // a part of commit(), which callers that commit several files can do in advance
  void commit();
  bool committed() const { return !file_; }

 private:
  std::filesystem::path path_, temporary_;
  FileDescriptor file_;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// A file that grows line by line (logs, metrics). Each append is one write; one that fails is truncated away, so that
// the file ends with a complete line. Appending does not allocate.
class AppendFile {
 public:
  enum class Start : std::uint8_t { empty, keep };  // keep: append to an existing file
  AppendFile(std::filesystem::path path, Start start);
  void append(std::string_view text);

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

// Fills `out` with bytes of an open file from an offset on; `path` is for the message.
void read_at(const FileDescriptor& file, std::uint64_t offset, std::span<std::byte> out,
             const std::filesystem::path& path);

// Writes all bytes, over interruptions and short writes; `name` is for the message.
void write_all(int fd, std::string_view text, std::string_view name);

}  // namespace tera
