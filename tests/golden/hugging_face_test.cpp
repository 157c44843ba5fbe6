// Logits, loss and every gradient against Hugging Face transformers, one small random model per family and trap.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/safetensors.h"
#include "tera/setup/load.h"
#include "tera/setup/resolve.h"
#include "tests/support/close.h"
#include "tests/support/model.h"
#include "tests/support/paths.h"

namespace tera::test {
namespace {

constexpr double limit = 1e-4;  // largest difference over largest value of a tensor

std::string data_file(const std::string& name) { return source_path("tests/golden/data/") + name; }

std::vector<std::int32_t> read_ints(const SafetensorsFile& file, const std::string& name) {
  const StoredTensor stored = file.get(name);
  std::vector<std::int32_t> out(stored.bytes.size() / sizeof(std::int32_t));
  std::memcpy(out.data(), stored.bytes.data(), stored.bytes.size());
  return out;
}

class HuggingFace : public testing::TestWithParam<const char*> {};

TEST_P(HuggingFace, LogitsLossAndGradientsAgree) {
  const std::string name = GetParam();
  const tera::Setup setup = resolve(load_config(data_file(name + ".yaml")).config);
  const SafetensorsFile file(data_file(name + ".safetensors"));
  Model model(setup.model, {.threads = 2, .batch = setup.batch.micro_batch, .seq = setup.batch.seq_length});
  load_weights(file, model.params(), model.ops());
  const Batch batch{
      .tokens = read_ints(file, "tokens"), .targets = read_ints(file, "targets"), .batch = setup.batch.micro_batch};

  // Our logits have padding columns; theirs do not.
  std::vector<float> logits;
  const std::vector<float> padded = model.logits(batch);
  for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
    const auto begin = padded.begin() + static_cast<std::ptrdiff_t>(row) * setup.model.padded_vocab;
    logits.insert(logits.end(), begin, begin + setup.model.vocab);
  }
  EXPECT_LT(relative_difference(logits, file.read_floats("logits")), limit);

  double want = 0;
  std::memcpy(&want, file.get("loss").bytes.data(), sizeof want);
  EXPECT_NEAR(model.train({batch}), want, limit * want);

  int gradients = 0;
  for (const Param* param : model.params().by_name()) {
    for (const auto& part : param->spec.parts) {
      const auto expected = to_model_layout(file.read_floats("grad." + part.name), part);
      EXPECT_LT(relative_difference(model.gradient(part.name), expected), limit) << part.name;
      ++gradients;
    }
  }
  int in_file = 0;
  for (const auto& entry : file.entries()) in_file += entry.name.starts_with("grad.") ? 1 : 0;
  EXPECT_EQ(gradients, in_file);  // none was forgotten
}

INSTANTIATE_TEST_SUITE_P(Models, HuggingFace,
                         testing::Values("gpt2", "llama2", "llama3", "llama_linear", "llama_yarn", "llama_yarn_mscale",
                                         "mistral", "qwen2", "qwen2_window", "qwen3", "mixtral", "qwen3_moe",
                                         "qwen3_moe_scores", "deepseek_v3", "deepseek_v2"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace tera::test
