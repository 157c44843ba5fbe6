#pragma once
// The file in which a rank keeps its pieces: safetensors, with a name and an offset for every piece. What the file will
// hold is known before anything is copied, so it is made front to back, in as many stretches as suits.

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tera/base/file.h"
#include "tera/base/function_ref.h"
#include "tera/checkpoint/model_state.h"

namespace tera {

class Ops;

// How a piece is named in such a file, and its dims there. A whole tensor has its own name and shape, so that any
// reader of safetensors knows it.
std::string piece_name(const std::string& tensor, const Shape& shape, const TensorSlice& slice);
std::vector<std::int64_t> piece_shape(const Shape& shape, const TensorSlice& slice);

class RankFile {
 public:
  RankFile(std::span<const StateTensor> tensors, std::vector<StatePiece> pieces);

  static std::string name(int rank);  // rank_00003.safetensors

  std::uint64_t bytes() const { return bytes_; }
  std::span<const StatePiece> pieces() const { return pieces_; }
  std::uint64_t offset(std::size_t piece) const { return offsets_[piece]; }  // from the beginning of the file

  // Bytes of the file from `begin` on, into memory of Device::allocate_host; there when this returns. `begin` is a
  // multiple of 8.
  void copy(Ops& ops, std::uint64_t begin, std::span<std::byte> host) const;

 private:
  std::vector<StatePiece> pieces_;  // wider elements first, so that all are aligned
  std::vector<std::uint64_t> offsets_;
  std::string header_;  // with its length before it
  std::uint64_t bytes_ = 0;
};

// A new file that is written once, front to back, past the system's cache where that is possible. Unless finish() was
// reached it is removed again. Every failure (a full disk) is a UserError.
class StreamFile {
 public:
  static constexpr std::size_t stretch = std::size_t{4} << 20;

  StreamFile(std::filesystem::path path, std::uint64_t bytes);
  StreamFile(const StreamFile&) = delete;
  StreamFile& operator=(const StreamFile&) = delete;
  ~StreamFile();

  // The whole content, stretch by stretch: while one is written, the next is made and its checksum taken. `make` gives
  // bytes that stay until it is called again for the stretch after the next, at addresses that are multiples of 4096.
  // Returns the checksum; by then all is synced.
  using Make = FunctionRef<std::span<const std::byte>(std::uint64_t begin, std::size_t bytes)>;
  std::uint32_t write(Make make);

 private:
  void append(std::span<const std::byte> bytes);
  void sync();
  void write_fully(std::span<const std::byte> bytes);
  void write_through_cache();

  std::filesystem::path path_;
  FileDescriptor file_;
  bool direct_ = false, finished_ = false;
  std::uint64_t bytes_, written_ = 0;
};

}  // namespace tera
