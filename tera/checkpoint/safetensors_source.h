#pragma once
// Weights out of safetensors files. They are mapped, and pages that were read are let go at once, so that reading a
// model does not make the program look as large as the model.

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
  // Whether the file has 8-bit floats and scales, and read() makes f32 of them.
  bool is_scaled(const std::string& name) const { return places_.at(name).scaled != nullptr; }

 protected:
  const SafetensorsFile& open(const std::filesystem::path& path);
  // From now on the tensor counts as f32: its 8-bit floats times those scales.
  void scale(const SafetensorsFile& file, const std::string& stored_name, const SafetensorsFile& scale_file,
             const std::string& scale_name, const HfQuantization& blocks);
  // What read() gives of a tensor of the file. UserError if it holds no floats.
  Entry entry_of(const SafetensorsFile& file, const std::string& stored_name) const;
  // stored_name: in the file. transposed: it is [in,out] there. UserError if it holds no floats.
  void add(const std::string& name, const SafetensorsFile& file, const std::string& stored_name, bool transposed);
  // Some rows of a tensor, as a tensor of its own; all dims of the stored one but the last count as rows.
  void add_rows(const std::string& name, const SafetensorsFile& file, const std::string& stored_name,
                std::int64_t first_row, std::int64_t rows);

 private:
  struct Place {
    const SafetensorsFile* file = nullptr;
    std::string name;
    bool transposed = false;
    std::int64_t first_row = 0;
    const ScaledFloat8* scaled = nullptr;  // none: plain floats
  };
  const ScaledFloat8* scaled(const SafetensorsFile& file, const std::string& stored_name) const;
  static void read_stored(const Place& place, const WeightBox& taken, std::span<std::byte> out);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place> places_;
  std::map<std::pair<const SafetensorsFile*, std::string>, ScaledFloat8> scaled_;
  std::map<std::string, Entry> tensors_;
};

// Pages of a mapped file that are not needed again.
void forget_pages(std::span<const std::byte> bytes);

// Elements of `size` bytes, from [rows,columns] to [columns,rows].
void transpose(std::span<const std::byte> in, std::int64_t rows, std::int64_t columns, std::size_t size,
               std::span<std::byte> out);

}  // namespace tera
