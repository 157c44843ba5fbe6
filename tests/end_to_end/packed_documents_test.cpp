#include "tests/end_to_end/packed_documents.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tera::test {
namespace {

TEST(PackedDocuments, TrainAsEachWouldAlone) {
  const std::vector<std::pair<std::string, Overrides>> cases{
      {"tiny", {}},
      {"tiny", {"dist.threads=2", "model.recompute_granularity=full"}},
      {"tiny_gpt", {"model.hidden_dropout=0", "model.attention_dropout=0"}},
      {"tiny_mistral", {}},
      {"tiny_qwen3", {}},
      {"tiny_mla", {}}};
  for (const auto& [config, overrides] : cases) {
    const auto [packed, apart, mixed] = run_documents(config, overrides);
    EXPECT_NEAR(packed.loss, apart.loss, 1e-5 * apart.loss) << config;
    EXPECT_NEAR(packed.eval_loss, apart.eval_loss, 1e-5 * apart.eval_loss) << config;
    EXPECT_LT(difference(packed.gradients, apart.gradients), 1e-5) << config;
    EXPECT_GT(std::abs(mixed.loss - apart.loss), 2e-5 * apart.loss) << config;
    EXPECT_GT(difference(mixed.gradients, apart.gradients), 1e-2) << config;
  }
}

}  // namespace
}  // namespace tera::test
