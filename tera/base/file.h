#pragma once
// Files as the rest of the program sees them: every failure is a UserError that names the path and the reason.

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

constexpr std::size_t direct_block_bytes = 4096;  // what direct I/O asks of addresses, places and sizes

// False only if nothing is there; a UserError if that cannot be told (a path too long, a folder that cannot be read).
bool path_exists(const std::filesystem::path& path);

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

// Makes a new or renamed entry of the folder that `path` lies in survive a power cut, where the file system can.
void sync_parent_folder(const std::filesystem::path& path);

// The whole file. More than max_bytes is an error, so that a wrong path cannot fill the memory.
std::string read_whole_file(const std::filesystem::path& path, std::size_t max_bytes);

// Writes beside the path under a temporary name; commit() syncs and renames, so that readers see the old file or the
// whole new one. Without commit() (an exception, a full disk) nothing is left behind.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();
  const std::filesystem::path& path() const { return path_; }
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  void sync();  // part of commit(), for those who commit several files at a time and want it over before
  void commit();
  bool committed() const { return !file_; }

 private:
  std::filesystem::path path_, temporary_;
  FileDescriptor file_;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// A file that grows line by line (logs, metrics). Each append is one write; one that fails is taken back, so that the
// file ends with a whole line. Appending does not allocate.
class AppendFile {
 public:
  enum class Start : std::uint8_t { empty, keep };  // keep: continue what is there
  AppendFile(std::filesystem::path path, Start start);
  void append(std::string_view text);

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

// Exactly so many bytes of an open file, from a place on; `path` is for the message.
void read_at(const FileDescriptor& file, std::uint64_t offset, std::span<std::byte> out,
             const std::filesystem::path& path);

// All bytes, through interruptions and short writes; `name` is for the message.
void write_all(int fd, std::string_view text, std::string_view name);

}  // namespace tera
