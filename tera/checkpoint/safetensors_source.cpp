#include "tera/checkpoint/safetensors_source.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "tera/base/error.h"

namespace tera {
namespace {

// Copies the elements of `box` out of rows of `columns`.
void copy_box(std::span<const std::byte> from, std::int64_t columns, const WeightBox& box, std::size_t size,
              std::byte* out) {
  const std::size_t run = static_cast<std::size_t>(box.columns()) * size;
  for (std::int64_t row = box.row_begin; row < box.row_end; ++row, out += run)
    std::memcpy(out, from.data() + static_cast<std::size_t>(row * columns + box.column_begin) * size, run);
}

DType float_type(const SafetensorsFile& file, const std::string& name, DType dtype) {
  require_user(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64,
               "{}: '{:.200}' holds {}, not floats", file.path().string(), name, name_of(dtype));
  return dtype;
}

}  // namespace

void forget_pages(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data()) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(bytes.data() + bytes.size());
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void transpose(std::span<const std::byte> in, std::int64_t rows, std::int64_t columns, std::size_t size,
               std::span<std::byte> out) {
  std::byte* to = out.data();
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t r = 0; r < rows; ++r, to += size)
      std::memcpy(to, in.data() + static_cast<std::size_t>(r * columns + c) * size, size);
}

const SafetensorsFile& SafetensorsSource::open(const std::filesystem::path& path) {
  return *files_.emplace_back(std::make_unique<SafetensorsFile>(path));
}

void SafetensorsSource::scale(const SafetensorsFile& file, const std::string& stored_name,
                              const SafetensorsFile& scale_file, const std::string& scale_name,
                              const HfQuantization& blocks) {
  scaled_.emplace(std::pair(&file, stored_name), ScaledFloat8(file, stored_name, scale_file, scale_name, blocks));
}

const ScaledFloat8* SafetensorsSource::scaled(const SafetensorsFile& file, const std::string& stored_name) const {
  const auto found = scaled_.find(std::pair(&file, stored_name));
  return found == scaled_.end() ? nullptr : &found->second;
}

WeightSource::Entry SafetensorsSource::entry_of(const SafetensorsFile& file, const std::string& stored_name) const {
  if (const ScaledFloat8* tensor = scaled(file, stored_name)) return {.dtype = DType::f32, .shape = tensor->shape()};
  const StoredTensor stored = file.get(stored_name);
  return {.dtype = float_type(file, stored_name, stored.dtype), .shape = stored.shape};
}

void SafetensorsSource::add(const std::string& name, const SafetensorsFile& file, const std::string& stored_name,
                            bool transposed) {
  Entry entry = entry_of(file, stored_name);
  const bool swapped = transposed && entry.shape.rank == 2;
  if (swapped) std::swap(entry.shape[0], entry.shape[1]);
  locations_[name] = {.file = &file, .name = stored_name, .transposed = swapped, .scaled = scaled(file, stored_name)};
  tensors_[name] = entry;
}

void SafetensorsSource::add_rows(const std::string& name, const SafetensorsFile& file, const std::string& stored_name,
                                 std::int64_t first_row, std::int64_t rows) {
  const Entry entry = entry_of(file, stored_name);
  locations_[name] = {.file = &file, .name = stored_name, .first_row = first_row, .scaled = scaled(file, stored_name)};
  tensors_[name] = {.dtype = entry.dtype, .shape = shape(rows, entry.shape.last())};
}

// stored_box: in the order of the file.
void SafetensorsSource::read_stored(const Location& location, const WeightBox& stored_box, std::span<std::byte> out) {
  if (location.scaled != nullptr) return location.scaled->read(stored_box, out);
  const StoredTensor stored = location.file->get(location.name);
  const std::size_t size = size_of(stored.dtype);
  const std::int64_t columns = stored.shape.rank >= 2 ? stored.shape.last() : 1;
  copy_box(stored.bytes, columns, stored_box, size, out.data());
  const auto begin = static_cast<std::size_t>(stored_box.row_begin * columns) * size;
  forget_pages(stored.bytes.subspan(begin, static_cast<std::size_t>(stored_box.rows() * columns) * size));
}

void SafetensorsSource::read(const std::string& name, const WeightBox& box, std::span<std::byte> out) const {
  const Location& location = locations_.at(name);
  const std::size_t size = size_of(tensors_.at(name).dtype);
  require(out.size() == static_cast<std::size_t>(box.elements()) * size, "a box of '{}' has another size", name);
  WeightBox stored_box = box;
  stored_box.row_begin += location.first_row;
  stored_box.row_end += location.first_row;
  if (!location.transposed) return read_stored(location, stored_box, out);
  stored_box = {box.column_begin, box.column_end, box.row_begin, box.row_end};
  std::vector<std::byte> as_stored(out.size());
  read_stored(location, stored_box, as_stored);
  transpose(as_stored, stored_box.rows(), stored_box.columns(), size, out);
}

}  // namespace tera
