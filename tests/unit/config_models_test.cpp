// The shapes under configs/models against the parameter counts their authors publish.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>

#include "tera/setup/resolve.h"
#include "tests/support/paths.h"

namespace tera::test {
namespace {

struct Published {
  std::int64_t parameters;
  double tolerance = 0;  // where only a rounded count is published
};

const std::map<std::string, Published>& published() {
  static const std::map<std::string, Published> counts{
      {"deepseek-v2-lite", {15'706'484'224}},
      {"deepseek-v3", {671'026'404'352}},  // without the bias of experts and the MTP layer
      {"gpt2-124m", {124'439'808}},
      {"gpt2-355m", {354'823'168}},
      {"gpt2-774m", {774'030'080}},
      {"gpt2-1.5b", {1'557'611'200}},
      {"gpt3-6.7b", {6'700'000'000, 0.01}},
      {"gpt3-13b", {13'000'000'000, 0.012}},
      {"gpt3-175b", {175'000'000'000, 0.005}},
      {"llama2-7b", {6'738'415'616}},
      {"llama2-13b", {13'015'864'320}},
      {"llama2-70b", {68'976'648'192}},
      {"llama3-8b", {8'030'261'248}},
      {"llama3-70b", {70'553'706'496}},
      {"llama3-405b", {405'853'388'800}},
      {"llama3.1-8b", {8'030'261'248}},
      {"llama3.1-70b", {70'553'706'496}},
      {"llama3.2-1b", {1'235'814'400}},
      {"llama3.2-3b", {3'212'749'824}},
      {"qwen2.5-0.5b", {494'032'768}},
      {"qwen2.5-1.5b", {1'543'714'304}},
      {"qwen2.5-3b", {3'085'938'688}},
      {"qwen2.5-7b", {7'615'616'512}},
      {"qwen2.5-14b", {14'770'033'664}},
      {"qwen2.5-32b", {32'763'876'352}},
      {"qwen2.5-72b", {72'706'203'648}},
      {"qwen3-0.6b", {596'049'920}},
      {"qwen3-1.7b", {1'720'574'976}},
      {"qwen3-4b", {4'022'468'096}},
      {"qwen3-8b", {8'190'735'360}},
      {"qwen3-14b", {14'768'307'200}},
      {"qwen3-32b", {32'762'123'264}},
      {"mistral-7b", {7'241'732'096}},
      {"mixtral-8x7b", {46'702'792'704}},
      {"mixtral-8x22b", {140'620'634'112}},
      {"qwen3-30b-a3b", {30'532'122'624}},
      {"qwen3-235b-a22b", {235'093'634'560}},
  };
  return counts;
}

// Parameters of a layer's feed-forward part, without norm.
std::int64_t count_ffn(const ModelShape& m, std::int64_t layer) {
  const std::int64_t up = is_gated(m.activation) ? 2 : 1;
  if (m.has_experts(layer))
    return m.moe->experts * m.hidden * (1 + (up + 1) * m.moe->ffn)  // 1: the router
           + m.hidden * (up + 1) * m.moe->shared_ffn;
  return m.hidden * (up + 1) * m.ffn + (m.linear_bias ? up * m.ffn + m.hidden : 0);
}

// Parameters including norms.
std::int64_t count_latent_attention(const ModelShape& m) {
  const MlaShape& mla = *m.mla;
  const std::int64_t q = m.heads * (mla.nope + mla.rotary), kv = m.heads * (mla.nope + mla.values);
  const std::int64_t queries = mla.q_lora > 0 ? mla.q_lora * (m.hidden + 1 + q) : m.hidden * q;
  return queries + m.hidden * (mla.kv_lora + mla.rotary) + mla.kv_lora * (1 + kv) + m.heads * mla.values * m.hidden;
}

// Parameters without padding rows, as published counts are.
std::int64_t count_parameters(const ModelShape& m) {
  const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  const std::int64_t norm = m.norm == NormKind::layer_norm ? 2 * m.hidden : m.hidden;
  std::int64_t layer = 2 * norm + (m.mla ? count_latent_attention(m) : m.hidden * (q + 2 * kv) + q * m.hidden);
  if (m.qkv_bias) layer += q + 2 * kv;
  if (m.linear_bias) layer += m.hidden;
  if (m.qk_norm) layer += 2 * m.head_dim;
  std::int64_t ffn = 0;
  for (std::int64_t i = 0; i < m.num_layers; ++i) ffn += count_ffn(m, i);
  const std::int64_t tables = (m.tied_embeddings ? 1 : 2) * m.vocab * m.hidden +
                              (m.positions == PositionKind::learned_absolute ? m.max_positions * m.hidden : 0);
  return tables + m.num_layers * layer + ffn + norm;
}

TEST(ModelConfigs, HaveThePublishedParameterCounts) {
  std::size_t seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_path("configs/models"))) {
    const std::string name = entry.path().stem().string();
    ASSERT_TRUE(published().contains(name)) << name << " has no published count in this test";
    const auto [parameters, tolerance] = published().at(name);
    const ModelShape model = resolve(load_config(entry.path().string()).config, Purpose::inspect).model;
    const double off = std::abs(static_cast<double>(count_parameters(model) - parameters));
    EXPECT_LE(off, tolerance * static_cast<double>(parameters)) << name << " has " << count_parameters(model);
    ++seen;
  }
  EXPECT_EQ(seen, published().size());
}

TEST(ModelConfigs, SetOnlyTheModel) {
  for (const auto& entry : std::filesystem::directory_iterator(source_path("configs/models")))
    for (const auto& [key, origin] : load_config(entry.path().string()).origins)
      EXPECT_TRUE(key.starts_with("model.") || key == "run.name") << entry.path() << ": " << key;
}

TEST(RunConfigs, AllResolve) {
  EXPECT_NO_THROW(resolve(load_config(source_path("configs/quickstart.yaml")).config));
  for (const auto& entry : std::filesystem::directory_iterator(source_path("configs/tests")))
    EXPECT_NO_THROW(resolve(load_config(entry.path().string()).config)) << entry.path();
}

}  // namespace
}  // namespace tera::test
