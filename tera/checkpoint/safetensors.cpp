#include "tera/checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>

#include "tera/base/error.h"
#include "tera/base/joined.h"
#include "tera/checkpoint/safetensors_header.h"

namespace tera {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and used as it lies");

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t max_header_bytes = 100'000'000;

struct StoredType {
  std::string_view name;
  std::uint64_t bytes;
  std::optional<DType> dtype;  // none: valid in a file, but not supported
};
constexpr std::array stored_types{
    StoredType{"F64", 8, DType::f64},   StoredType{"F32", 4, DType::f32}, StoredType{"F16", 2, DType::f16},
    StoredType{"BF16", 2, DType::bf16}, StoredType{"I64", 8, DType::i64}, StoredType{"I32", 4, DType::i32},
    StoredType{"U8", 1, DType::u8},     StoredType{"F8_E4M3", 1, {}},     StoredType{"F8_E5M2", 1, {}},
    StoredType{"I16", 2, {}},           StoredType{"I8", 1, {}},          StoredType{"BOOL", 1, {}},
    StoredType{"U16", 2, {}},           StoredType{"U32", 4, {}},         StoredType{"U64", 8, {}}};

const StoredType* find_type(std::string_view name) {
  const auto it = std::ranges::find(stored_types, name, &StoredType::name);
  return it == stored_types.end() ? nullptr : &*it;
}

// Bytes of a tensor, or none when the product does not fit.
std::optional<std::uint64_t> byte_count(const std::vector<std::int64_t>& dims, std::uint64_t element_bytes) {
  std::uint64_t bytes = element_bytes;
  for (const std::int64_t dim : dims)
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dim), &bytes)) return std::nullopt;
  return bytes;
}

std::span<const std::byte> map_file(const std::filesystem::path& path) {
  const auto check = [&path](bool good) {
    require_user(good, "cannot open {}: {}", path.string(), std::generic_category().message(errno));
  };
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  check(static_cast<bool>(file));
  struct stat info {};
  check(::fstat(file.get(), &info) == 0);
  require_user(S_ISREG(info.st_mode) && info.st_size >= static_cast<off_t>(length_bytes),
               "{} is no safetensors file: it has {} bytes, and {} are needed for the header's length", path.string(),
               S_ISREG(info.st_mode) ? info.st_size : 0, length_bytes);
  const auto size = static_cast<std::size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  check(data != MAP_FAILED);
  return {static_cast<const std::byte*>(data), size};
}

template <class T>
std::vector<float> convert_floats(std::span<const std::byte> bytes) {
  std::vector<float> out(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < out.size(); ++i) {
    T element;
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, double>)
      out[i] = static_cast<float>(element);
    else
      out[i] = to_float(element);
  }
  return out;
}

}  // namespace

std::string_view safetensors_dtype(DType dtype) {
  const auto it = std::ranges::find(stored_types, std::optional(dtype), &StoredType::dtype);
  require(it != stored_types.end(), "safetensors has no name for {}", name_of(dtype));
  return it->name;
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)), file_(map_file(path_)) {
  try {
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file_.data(), length_bytes);
    const std::uint64_t space = file_.size() - length_bytes;
    require_user(header_bytes <= std::min(space, max_header_bytes) && header_bytes >= 2,
                 "{} is no safetensors file: it claims a header of {} bytes; {} follow, and at most {} are allowed",
                 path_.string(), header_bytes, space, max_header_bytes);
    data_ = file_.subspan(length_bytes + header_bytes);
    const std::string_view header(reinterpret_cast<const char*>(file_.data()) + length_bytes, header_bytes);
    require_user(header.front() == '{', "{} is no safetensors file: its header does not start with {{", path_.string());
    parse_header(header, data_.size());
  } catch (...) {  // the destructor does not run after an exception in the constructor
    ::munmap(const_cast<std::byte*>(file_.data()), file_.size());
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() { ::munmap(const_cast<std::byte*>(file_.data()), file_.size()); }

void SafetensorsFile::parse_header(std::string_view header, std::uint64_t data_bytes) {
  SafetensorsHeader parsed = parse_safetensors_header(header, path_);
  metadata_ = std::move(parsed.metadata);
  entries_ = std::move(parsed.entries);

  std::ranges::sort(entries_,
                    [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t expected = 0;  // tensors follow each other without gap or overlap, to the end of the file
  for (const SafetensorsEntry& entry : entries_) {
    const StoredType* type = find_type(entry.dtype_name);
    require_user(type != nullptr, "{}: tensor '{:.200}' has the unknown dtype '{:.40}'", path_.string(), entry.name,
                 entry.dtype_name);
    const auto bytes = byte_count(entry.shape, type->bytes);
    require_user(entry.begin == expected && entry.begin <= entry.end && bytes == entry.end - entry.begin,
                 "{}: tensor '{:.200}' of {} [{}] lies at bytes {} to {}; it should start at {} and have {} bytes",
                 path_.string(), entry.name, entry.dtype_name, joined(entry.shape, ","), entry.begin, entry.end,
                 expected, bytes ? std::to_string(*bytes) : "more than any file");
    expected = entry.end;
  }
  require_user(expected == data_bytes, "{}: its tensors end at byte {} of the data, but {} bytes are there",
               path_.string(), expected, data_bytes);
  std::ranges::sort(entries_, {}, &SafetensorsEntry::name);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(entries_, name, {}, &SafetensorsEntry::name);
  return it != entries_.end() && it->name == name ? &*it : nullptr;
}

StoredTensor SafetensorsFile::get(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  require_user(entry != nullptr, "{} has no tensor '{}'", path_.string(), name);
  const StoredType* type = find_type(entry->dtype_name);
  require_user(type->dtype.has_value(), "{}: tensor '{}' has dtype {}, which is not supported", path_.string(), name,
               entry->dtype_name);
  return {*type->dtype, shape_of(*entry), bytes_of(*entry)};
}

std::optional<StoredFloat8> SafetensorsFile::find_float8(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr || !entry->dtype_name.starts_with("F8_")) return std::nullopt;
  const Float8Kind kind = entry->dtype_name == "F8_E4M3" ? Float8Kind::e4m3 : Float8Kind::e5m2;
  return StoredFloat8{kind, shape_of(*entry), bytes_of(*entry)};
}

Shape SafetensorsFile::shape_of(const SafetensorsEntry& entry) const {
  require_user(entry.shape.size() <= Shape::max_rank, "{}: tensor '{}' has {} dims; at most {} are supported",
               path_.string(), entry.name, entry.shape.size(), Shape::max_rank);
  Shape dims = shape(1);
  if (!entry.shape.empty()) {
    dims.rank = static_cast<int>(entry.shape.size());
    std::ranges::copy(entry.shape, dims.dim.begin());
  }
  return dims;
}

std::vector<float> SafetensorsFile::read_floats(std::string_view name) const {
  const StoredTensor tensor = get(name);
  switch (tensor.dtype) {
    case DType::f64: return convert_floats<double>(tensor.bytes);
    case DType::f32: return convert_floats<float>(tensor.bytes);
    case DType::bf16: return convert_floats<BFloat16>(tensor.bytes);
    case DType::f16: return convert_floats<Float16>(tensor.bytes);
    default: fail_user("{}: tensor '{}' holds {}, not floats", path_.string(), name, name_of(tensor.dtype));
  }
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, const std::vector<SafetensorsSpec>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(std::move(path)) {
  // Wider elements first, so that every tensor is aligned to its element and readers can use it in place.
  std::vector<const SafetensorsSpec*> order;
  for (const SafetensorsSpec& spec : tensors) order.push_back(&spec);
  std::ranges::stable_sort(order, std::ranges::greater{}, [](const auto* spec) { return size_of(spec->dtype); });

  SafetensorsHeader header{{}, metadata};
  header.metadata["format"] = "pt";
  std::uint64_t offset = 0;
  for (const SafetensorsSpec* spec : order) {
    require(spec->shape.rank > 0 && spec->name != "__metadata__", "tensor '{}' has no dims or a reserved name",
            spec->name);
    const auto dims = spec->shape.dim.begin();
    const std::uint64_t bytes = static_cast<std::uint64_t>(count(spec->shape)) * size_of(spec->dtype);
    header.entries.push_back({spec->name,
                              std::string(safetensors_dtype(spec->dtype)),
                              {dims, dims + spec->shape.rank},
                              offset,
                              offset + bytes});
    offset += bytes;
  }
  std::string text = format_safetensors_header(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data to 8 bytes
  require(text.size() <= max_header_bytes, "a safetensors header of {} bytes is too long", text.size());

  const std::uint64_t header_bytes = text.size();
  const std::uint64_t data_begin = length_bytes + header_bytes;
  file_bytes_ = data_begin + offset;
  file_.write_at(0, std::as_bytes(std::span(&header_bytes, 1)));
  file_.write_at(length_bytes, std::as_bytes(std::span(text)));
  for (const SafetensorsEntry& entry : header.entries) {
    const bool fresh = pending_.emplace(entry.name, Pending{data_begin + entry.begin, data_begin + entry.end}).second;
    require(fresh, "tensor '{}' is listed twice", entry.name);
  }
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  const auto it = pending_.find(name);
  require(it != pending_.end(), "tensor '{}' was not announced for {}", name, file_.path().string());
  Pending& pending = it->second;
  require(bytes.size() <= pending.end - pending.next, "tensor '{}' has {} bytes left to write, {} were given", name,
          pending.end - pending.next, bytes.size());
  file_.write_at(pending.next, bytes);
  pending.next += bytes.size();
}

void SafetensorsWriter::finish() {
  for (const auto& [name, pending] : pending_)
    require(pending.next == pending.end, "tensor '{}' still lacks {} bytes", name, pending.end - pending.next);
  file_.commit();
}

}  // namespace tera
