#pragma once
// A WeightSource of memory-mapped safetensors files. Pages are released right after they are read, so that the resident
// memory does not grow to the size of the model.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tera/checkpoint/safetensors.h"
#include "tera/checkpoint/scaled_float8.h"
#include "tera/checkpoint/weight_source.h"

namespace tera {

class SafetensorsSource : public WeightSource {
 public:
  const std::map<std::string, Entry>& tensors() const override { return tensors_; }
  void read(const std::string& name, const WeightBox& box, std::span<std::byte> out) const override;
  // Whether the tensor is stored as FP8 with scales, which read() dequantizes to f32.
  bool is_scaled(const std::string& name) const { return locations_.at(name).scaled != nullptr; }

 protected:
  const SafetensorsFile& open(const std::filesystem::path& path);
  // From now on the FP8 tensor is read as f32, multiplied by the scales of its blocks.
  void scale(const SafetensorsFile& file, const std::string& stored_name, const SafetensorsFile& scale_file,
             const std::string& scale_name, const HfQuantization& blocks);
  // Dtype and shape in which read() gives a tensor of the file. UserError if it holds no floats.
  Entry entry_of(const SafetensorsFile& file, const std::string& stored_name) const;
  // Adds a tensor. stored_name: in the file. transposed: it is [in,out] there. UserError if it holds no floats.
  void add(const std::string& name, const SafetensorsFile& file, const std::string& stored_name, bool transposed);
  // Adds some rows of a tensor as a tensor of its own; all dims of the stored one but the last count as rows.
  void add_rows(const std::string& name, const SafetensorsFile& file, const std::string& stored_name,
                std::int64_t first_row, std::int64_t rows);

 private:
  struct Location {
    const SafetensorsFile* file = nullptr;
    std::string name;
    bool transposed = false;
    std::int64_t first_row = 0;
    const ScaledFloat8* scaled = nullptr;  // null: plain floats
  };
  const ScaledFloat8* scaled(const SafetensorsFile& file, const std::string& stored_name) const;
  static void read_stored(const Location& location, const WeightBox& stored_box, std::span<std::byte> out);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Location> locations_;
  std::map<std::pair<const SafetensorsFile*, std::string>, ScaledFloat8> scaled_;
  std::map<std::string, Entry> tensors_;
};

// Releases pages of a mapped file from resident memory.
void forget_pages(std::span<const std::byte> bytes);

// Transposes elements of `size` bytes from [rows,columns] to [columns,rows].
void transpose(std::span<const std::byte> in, std::int64_t rows, std::int64_t columns, std::size_t size,
               std::span<std::byte> out);

}  // namespace tera
