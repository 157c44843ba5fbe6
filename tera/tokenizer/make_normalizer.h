#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tera/tokenizer/normalizer.h"

namespace tera {
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& value, const std::string& path);
}
