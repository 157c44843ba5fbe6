// Every model family of this library, by name. A new one is added to both lists.

#include <array>

#include "tera/config/family.h"

namespace tera {

// clang-format off
namespace deepseek { extern const ModelFamily v2, v3; }
namespace gpt { extern const ModelFamily family; }
namespace llama { extern const ModelFamily family; }
namespace mistral { extern const ModelFamily family; }
namespace mixtral { extern const ModelFamily family; }
namespace qwen { extern const ModelFamily qwen2, qwen3; }
namespace qwen3_moe { extern const ModelFamily family; }

Families built_in_families() {
  static constexpr std::array all{&deepseek::v2, &deepseek::v3,
                                  &gpt::family,
                                  &llama::family,
                                  &mistral::family,
                                  &mixtral::family,
                                  &qwen::qwen2, &qwen::qwen3,
                                  &qwen3_moe::family};
  return all;
}
// clang-format on

}  // namespace tera
