// Fuzzes the manifest of a checkpoint: an accepted manifest is consistent and survives a round trip.

#include <string>
#include <string_view>
#include <vector>

#include "fuzz/fuzz_file.h"
#include "tera/base/error.h"
#include "tera/checkpoint/manifest.h"

namespace tera::fuzz {
namespace {

void check_tensor(const Manifest& manifest, const ManifestTensor& tensor) {
  std::vector<TensorSlice> slices;
  std::int64_t elements = 0;
  for (const ManifestPiece& piece : tensor.pieces) {
    must(piece.file < manifest.files.size() && is_slice_of(piece.slice, tensor.shape));
    const auto bytes = static_cast<std::uint64_t>(piece.slice.elements()) * size_of(tensor.dtype);
    must(manifest.version == 1 || piece.offset + bytes <= manifest.files[piece.file].bytes);
    elements += piece.slice.elements();
    slices.push_back(piece.slice);
  }
  must(elements == count(tensor.shape) && why_not_a_cover(slices, tensor.shape).empty());
  if (elements > 100000) return;  // too many elements to visit
  for (const ManifestPiece& piece : tensor.pieces) {
    const std::int64_t shared =
        for_each_shared(piece.slice, full_slice(tensor.shape), tensor.shape, [](const SharedRun&) {});
    must(shared == piece.slice.elements());
  }
}

}  // namespace
}  // namespace tera::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace tera;
  try {
    const std::string_view text(reinterpret_cast<const char*>(bytes), size);
    const Manifest manifest = parse_manifest(
        seal_manifest(text), "manifest.json");  // a valid checksum, without which hardly any input is parsed
    for (const auto& tensor : manifest.tensors) fuzz::check_tensor(manifest, tensor.second);
    if (manifest.version == 1) return 0;
    const Manifest again = parse_manifest(format_manifest(manifest), "manifest.json");
    fuzz::must(again.tensors == manifest.tensors && again.files == manifest.files);
    fuzz::must(again.source.step == manifest.source.step && again.source.config_yaml == manifest.source.config_yaml);
    fuzz::must(again.source.consumed_tokens == manifest.source.consumed_tokens);
  } catch (const UserError&) {
  }
  try {
    parse_manifest({reinterpret_cast<const char*>(bytes), size}, "manifest.json");
  } catch (const UserError&) {
  }
  return 0;
}
