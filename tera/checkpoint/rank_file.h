#pragma once
// The checkpoint file of a rank: safetensors, with a name and an offset for every piece. The layout is known before
// anything is copied, so the file is written sequentially, in chunks of any size.

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tera/base/file.h"
#include "tera/base/function_ref.h"
#include "tera/checkpoint/model_state.h"

namespace tera {

class Ops;

// Name and dims of a piece in such a file. An unsharded tensor keeps its own name and shape, so that any reader of
// safetensors can use it.
std::string piece_name(const std::string& tensor, const Shape& shape, const TensorSlice& slice);
std::vector<std::int64_t> piece_shape(const Shape& shape, const TensorSlice& slice);

class RankFile {
 public:
  RankFile(std::span<const StateTensor> tensors, std::vector<StatePiece> pieces);

  static std::string name(int rank);  // rank_00003.safetensors

  std::uint64_t bytes() const { return bytes_; }
  std::span<const StatePiece> pieces() const { return pieces_; }
  std::uint64_t offset(std::size_t piece) const { return offsets_[piece]; }  // from the beginning of the file

  // Copies bytes of the file from `begin` on to memory of Device::allocate_host, and waits for the copies. `begin` is a
  // multiple of 8.
  void copy(Ops& ops, std::uint64_t begin, std::span<std::byte> host) const;

 private:
  std::vector<StatePiece> pieces_;  // wider elements first, so that all are aligned
  std::vector<std::uint64_t> offsets_;
  std::string header_;  // including the length field
  std::uint64_t bytes_ = 0;
};

// A new file that is written once, sequentially, with direct I/O where that is possible. It is removed unless write()
// succeeded. Every failure (a full disk) is a UserError.
class StreamFile {
 public:
  static constexpr std::size_t chunk_bytes = std::size_t{4} << 20;

  StreamFile(std::filesystem::path path, std::uint64_t bytes);
  StreamFile(const StreamFile&) = delete;
  StreamFile& operator=(const StreamFile&) = delete;
  ~StreamFile();

  // Writes the content chunk by chunk, double-buffered: while one chunk is written, the next is made and added to the
  // checksum. The bytes that `make` returns stay valid until its next call but one, at addresses that are multiples of
  // 4096. Returns the checksum after the file is synced.
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
