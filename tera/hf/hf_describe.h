#pragma once
// Describes the content of a Hugging Face folder, for `tera inspect`.

#include <filesystem>
#include <nlohmann/json.hpp>

namespace tera {

// Keys and values in the order of the report. UserError for what training from the folder would refuse:
// an unsupported config.json, tensors that are missing, of another shape, or not of the model.
nlohmann::ordered_json describe_hf_folder(const std::filesystem::path& folder);

}  // namespace tera
