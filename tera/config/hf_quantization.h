#pragma once
// What a config.json says of weights that are stored in fewer bits than they are computed with.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tera {

class HfFields;

// 8-bit floats, where each block of a matrix has a scale. Blocks at the right and lower edges may be smaller.
struct HfQuantization {
  std::int64_t block_rows = 128, block_columns = 128;
};

// None: the weights are plain floats. UserError naming the method if it is one that is not read.
std::optional<HfQuantization> read_hf_quantization(const HfFields& config);
std::optional<HfQuantization> parse_hf_quantization(std::string_view text, const std::string& where);

}  // namespace tera
