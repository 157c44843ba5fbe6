#pragma once
// The safetensors format: 8 bytes little-endian header length, a JSON header naming every tensor with dtype, shape and
// byte range, then the data. Files are untrusted: everything is checked against the real file size before use.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tera/base/file.h"
#include "tera/checkpoint/float8.h"
#include "tera/tensor/dtype.h"
#include "tera/tensor/shape.h"

namespace tera {

// The header entry of one tensor. All dtypes and ranks of the format may be listed; get() refuses unsupported ones.
struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;            // as written in the file: "F32", "F8_E4M3"
  std::vector<std::int64_t> shape;   // no dims for a scalar
  std::uint64_t begin = 0, end = 0;  // bytes within the data
};

// The format's name of one of our dtypes: "F32".
std::string_view safetensors_dtype(DType dtype);

struct StoredTensor {
  DType dtype = DType::f32;
  Shape shape;                       // a scalar is [1]
  std::span<const std::byte> bytes;  // inside the mapped file, perhaps unaligned: copy before computing
};

struct StoredFloat8 {
  Float8Kind kind = Float8Kind::e4m3;
  Shape shape;
  std::span<const std::byte> bytes;  // one per element
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  ~SafetensorsFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const SafetensorsEntry> entries() const { return entries_; }  // by name
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  std::uint64_t data_offset() const { return file_.size() - data_.size(); }  // where the data begin, in bytes
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  StoredTensor get(std::string_view name) const;  // UserError if absent or of an unsupported dtype or rank
  std::optional<StoredFloat8> find_float8(std::string_view name) const;  // none if absent or of another dtype
  // Converts the elements to f32: f32, bf16 and f16 exactly, f64 rounded.
  std::vector<float> read_floats(std::string_view name) const;

 private:
  const SafetensorsEntry* find(std::string_view name) const;
  Shape shape_of(const SafetensorsEntry& entry) const;
  std::span<const std::byte> bytes_of(const SafetensorsEntry& entry) const {
    return data_.subspan(entry.begin, entry.end - entry.begin);
  }
  void parse_header(std::string_view header, std::uint64_t data_bytes);

  std::filesystem::path path_;
  std::span<const std::byte> file_, data_;  // the full mapping, and its part after the header
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

struct SafetensorsSpec {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// Streaming writer: all names and shapes first, then the data, tensor by tensor in any order, each in any number of
// pieces. The file appears under its name at finish(), complete and synced, or not at all.
class SafetensorsWriter {
 public:
  // `metadata` is stored beside the entry {"format": "pt"} that readers expect.
  SafetensorsWriter(std::filesystem::path path, const std::vector<SafetensorsSpec>& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  void write(std::string_view name, std::span<const std::byte> bytes);  // the next bytes of this tensor
  void finish();                                                        // every tensor must be complete
  std::uint64_t file_bytes() const { return file_bytes_; }              // size of the finished file

 private:
  struct Pending {
    std::uint64_t next = 0, end = 0;  // bytes within the file
  };
  AtomicFile file_;
  std::uint64_t file_bytes_ = 0;
  std::map<std::string, Pending, std::less<>> pending_;
};

}  // namespace tera
