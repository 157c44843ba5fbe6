#include "tera/hf/config/hf_quantization.h"

#include <vector>

#include "tera/hf/config/hf_json.h"

namespace tera {

std::optional<HfQuantization> read_hf_quantization(const HfFields& config) {
  constexpr std::int64_t max_block = std::int64_t{1} << 20;
  constexpr auto supported = "fp8 with a weight_block_size is; or save the model again in bf16, fp16 or fp32";
  const std::optional<HfFields> how = config.object("quantization_config");
  if (!how) return std::nullopt;
  if (how->text("quant_method") != "fp8") how->refuse("quant_method", supported);
  const std::string format = how->text("fmt").value_or("e4m3");
  if (format != "e4m3" && format != "e5m2") how->refuse("fmt", "e4m3 and e5m2 are");
  const std::vector<std::int64_t> block = how->integers("weight_block_size").value_or(std::vector<std::int64_t>());
  const bool good =
      block.size() == 2 && block[0] >= 1 && block[0] <= max_block && block[1] >= 1 && block[1] <= max_block;
  if (!good) how->refuse("weight_block_size", "two whole numbers are, such as [128, 128]: rows and columns of a block");
  return HfQuantization{.block_rows = block[0], .block_columns = block[1]};
}

std::optional<HfQuantization> parse_hf_quantization(std::string_view text, const std::string& where) {
  const HfJson json = parse_hf_json(text, where);
  return read_hf_quantization(HfFields(json, where + ": "));
}

}  // namespace tera
