#pragma once
// quantization_config of a config.json: weights that are stored with fewer bits than they are computed with.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tera {

class HfFields;

// FP8 with block-wise scales. Blocks at the right and lower edges of a matrix may be smaller.
struct HfQuantization {
  std::int64_t block_rows = 128, block_columns = 128;
};

// None if the weights are plain floats. UserError that names the method if it is not supported.
std::optional<HfQuantization> read_hf_quantization(const HfFields& config);
std::optional<HfQuantization> parse_hf_quantization(std::string_view text, const std::string& where);

}  // namespace tera
