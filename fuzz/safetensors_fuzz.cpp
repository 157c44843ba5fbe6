// Fuzzes a safetensors file: if it opens, all tensors are read.

#include "fuzz/fuzz_file.h"
#include "tera/base/error.h"
#include "tera/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace tera;
  static const fuzz::FuzzFolder folder;
  try {
    const SafetensorsFile file(folder.write("f.safetensors", {bytes, size}));
    std::size_t read = 0;
    for (const SafetensorsEntry& entry : file.entries()) {
      fuzz::must(file.contains(entry.name) && entry.begin <= entry.end);
      try {
        const StoredTensor tensor = file.get(entry.name);
        for (const std::byte byte : tensor.bytes) read += static_cast<std::size_t>(byte);
        if (is_float(tensor.dtype)) fuzz::must(file.read_floats(entry.name).size() <= tensor.bytes.size());
      } catch (const UserError&) {  // an unsupported dtype or rank
      }
    }
    fuzz::must(read <= 255 * size);
  } catch (const UserError&) {
  }
  return 0;
}
