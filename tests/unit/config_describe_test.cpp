// Tables, structs and documents must agree.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>
#include <string>

#include "tera/base/error.h"
#include "tera/config/catalog.h"
#include "tera/config/value.h"
#include "tera/setup/describe.h"
#include "tera/setup/resolve.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

// Converts to any member; an optional takes its value's type instead, or the conversion would be ambiguous.
struct Anything {
  template <class T>
  requires(!is_optional<T>) operator T() const;  // NOLINT(google-explicit-constructor)
};

template <class T, class... Members>
constexpr std::size_t count_members() {
  if constexpr (requires { T{Members{}..., Anything{}}; }) {
    return count_members<T, Members..., Anything>();
  } else {
    return sizeof...(Members);
  }
}

template <class Section>
void expect_every_member_listed() {
  EXPECT_GT(count_members<Section>(), 0u);
  EXPECT_EQ(Section::fields().size(), count_members<Section>()) << Section::fields()[0].name;
}

TEST(ConfigTables, ListEveryMember) {
  expect_every_member_listed<RunConfig>();
  expect_every_member_listed<ModelConfig>();
  expect_every_member_listed<RopeScaling>();
  expect_every_member_listed<DistConfig>();
  expect_every_member_listed<TrainConfig>();
  expect_every_member_listed<OptimizerConfig>();
  expect_every_member_listed<SchedulerConfig>();
  expect_every_member_listed<DdpConfig>();
  expect_every_member_listed<CommOverlapConfig>();
  expect_every_member_listed<MixedPrecisionConfig>();
  expect_every_member_listed<DatasetConfig>();
  expect_every_member_listed<TokenizerConfig>();
  expect_every_member_listed<CheckpointConfig>();
  expect_every_member_listed<LoggerConfig>();
  expect_every_member_listed<RunSection>();
}

TEST(ConfigTables, EveryKeyIsFoundAndExplained) {
  for (const std::string& key : all_keys()) {
    ASSERT_NE(find_field(key), nullptr) << key;
    EXPECT_FALSE(find_field(key)->help.empty()) << key;
    EXPECT_TRUE(contains(explain_key(key, nullptr), find_field(key)->help)) << key;
  }
  EXPECT_EQ(find_field("model.nothing"), nullptr);
  EXPECT_EQ(find_field("train.seed.more"), nullptr);
  EXPECT_EQ(find_field(""), nullptr);
}

// Defaults must satisfy the limits that the tables state.
TEST(ConfigTables, DefaultsAreWithinLimits) {
  for_each_value(RunConfig{}, [](const std::string& key, const Field& field, const void* value) {
    EXPECT_TRUE(field.required || check_limits(field, value).empty()) << key;
  });
}

void randomise(const Field& field, void* value, std::mt19937_64& random) {
  const std::string odd_texts[] = {"",
                                   "null",
                                   "~",
                                   "true",
                                   "1",
                                   "a: b",
                                   "#x",
                                   "say \"hi\" \\ 'x'",
                                   "tab\tnew\nline",
                                   "\xe2\x82\xac",
                                   " space ",
                                   "-",
                                   "a,b",
                                   "{x}",
                                   "*",
                                   "&a",
                                   "plain/path.txt",
                                   "\x7f"};
  const auto text = [&] { return odd_texts[random() % std::size(odd_texts)]; };
  const auto number = [&] {
    double drawn = 0;
    do drawn = std::bit_cast<double>(random());
    while (!std::isfinite(drawn) || std::abs(drawn) < 1e-300);
    return drawn;
  };
  switch (field.kind) {
    case FieldKind::boolean: *static_cast<bool*>(value) = random() % 2 == 0; break;
    case FieldKind::integer: *static_cast<std::int64_t*>(value) = static_cast<std::int64_t>(random()); break;
    case FieldKind::number: *static_cast<double*>(value) = number(); break;
    case FieldKind::text: *static_cast<std::string*>(value) = text(); break;
    case FieldKind::text_list: *static_cast<std::vector<std::string>*>(value) = {text(), text()}; break;
    case FieldKind::integer_list:
      *static_cast<std::vector<std::int64_t>*>(value) = {static_cast<std::int64_t>(random()), -1};
      break;
    case FieldKind::number_list:
      static_cast<std::vector<double>*>(value)->assign(random() % 3, 0);
      for (double& each : *static_cast<std::vector<double>*>(value)) each = number();
      break;
    case FieldKind::blend:
      *static_cast<std::vector<BlendPart>*>(value) = {{text(), 0.5}, {text(), static_cast<double>(random()) / 3}};
      break;
    case FieldKind::choice: {
      const std::vector<std::string_view> names = field.choice->names();
      field.choice->set(value, names[random() % names.size()]);
      break;
    }
    case FieldKind::section: break;
  }
}

TEST(ConfigYaml, AnyValueIsReadBackBitForBit) {
  std::mt19937_64 random(3);
  const TempFolder folder;
  for (int round = 0; round < 100; ++round) {
    tera::Setup setup;
    for_each_value(setup.config, [&](const std::string&, const Field& field, const void* value) {
      randomise(field, const_cast<void*>(value), random);
    });
    if (setup.config.run.name.empty()) setup.config.run.name.push_back('x');
    setup.config.model.hf.clear();  // a folder that decides over the other values
    const auto file = folder.write("any.yaml", resolved_yaml(setup));
    ASSERT_EQ(load_config(file.string()).config, setup.config) << resolved_yaml(setup);
  }
}

TEST(ConfigYaml, ResolvedFileGivesTheSameSetup) {
  const TempFolder folder;
  for (const char* name :
       {"quickstart.yaml", "tests/tiny_gpt.yaml", "tests/tiny_qwen2.yaml", "models/llama3.1-8b.yaml",
        "tests/tiny_qwen3_moe.yaml", "models/mixtral-8x7b.yaml", "tests/tiny_mla.yaml", "models/deepseek-v3.yaml"}) {
    const LoadedConfig loaded = load_config(source_path("configs/") + name, {});
    const tera::Setup setup = resolve(loaded.config, Purpose::inspect);
    const auto plain = folder.write("config.resolved.yaml", resolved_yaml(setup));
    EXPECT_EQ(resolve(load_config(plain.string()).config, Purpose::inspect), setup) << name;
    const auto annotated = folder.write("annotated.yaml", annotated_yaml(setup, loaded.origins));
    EXPECT_EQ(resolve(load_config(annotated.string()).config, Purpose::inspect), setup) << name;
  }
}

TEST(ConfigYaml, SaysWhatIsDerivedAndFromWhere) {
  const LoadedConfig loaded =
      load_config(source_path("configs/tests/tiny.yaml"), std::vector<std::string>{"train.seed=7"});
  const std::string text = annotated_yaml(resolve(loaded.config), loaded.origins);
  for (const char* words : {"seed: 7", "# command line", "tiny.yaml:4", "kv_channels: 0", "# default; becomes 8",
                            "default of model.arch=llama", "# default; becomes runs/tiny"})
    EXPECT_TRUE(contains(text, words)) << words << "\n" << text;
}

TEST(ConfigExplain, ReportsAllAboutAKey) {
  const LoadedConfig loaded = load_config(source_path("configs/tests/tiny.yaml"));
  const std::string text = explain_key("model.activation", &loaded);
  for (const char* words : {"gelu, gelu_tanh", "default:  gelu", "gpt: gelu_tanh", "value:    swiglu",
                            "from:     default of model.arch=llama"})
    EXPECT_TRUE(contains(text, words)) << text;
  EXPECT_TRUE(contains(explain_key("mixed_precision.precision", nullptr), "fp32, bf16 or fp16"));
  EXPECT_TRUE(contains(explain_key("mixed_precision.precision", nullptr), "unless optimizer.exp_avg_dtype"));
  EXPECT_TRUE(contains(explain_key("exp_avg_sq_dtype", nullptr), "adam's second moment is stored as; bf16 halves"));
  EXPECT_TRUE(contains(explain_key("model.rope_scaling", nullptr), "beta_fast"));
  EXPECT_TRUE(contains(message_of<UserError>([] { explain_key("model.numlayers", nullptr); }),
                       "did you mean model.num_layers?"));
}

TEST(ConfigExplain, ANameOfOneSectionNeedsNoSection) {
  EXPECT_EQ(explain_key("router_topk", nullptr), explain_key("model.moe.router_topk", nullptr));
  EXPECT_EQ(explain_key("rope_scaling", nullptr), explain_key("model.rope_scaling", nullptr));
  const auto refused = [](std::string_view key, std::string_view words) {
    const std::string message = message_of<UserError>([&] { explain_key(key, nullptr); });
    EXPECT_TRUE(contains(message, words)) << message;
  };
  refused("ffn_hidden_size", "did you mean model.ffn_hidden_size or model.moe.ffn_hidden_size?");
  refused("num_local_experts", "there is no key num_local_experts; did you mean model.moe.num_experts?");
  for (const char* flag : {"use-precision-aware-optimizer", "--use-precision-aware-optimizer"})
    refused(flag, "there is no key use_precision_aware_optimizer; did you mean optimizer.exp_avg_dtype? it and");
  refused("main-params-dtype", "there is no key main_params_dtype; main weights are always fp32");
  EXPECT_EQ(explain_key("--exp-avg-dtype", nullptr), explain_key("optimizer.exp_avg_dtype", nullptr));
  refused("moe_grouped_gemm", "there is no key moe_grouped_gemm; products of experts are always grouped");
}

TEST(ConfigDocs, HelpHoldsEveryKey) {
  const std::string help = config_help();
  for_each_value(RunConfig{}, [&](const std::string& key, const Field& field, const void*) {
    EXPECT_TRUE(contains(help, key + "\n") && contains(help, field.help)) << key;
  });
}

TEST(ConfigDocs, CommittedPageIsTheGeneratedOne) {
  std::ifstream file(source_path("docs/config.md"));
  std::stringstream committed;
  committed << file.rdbuf();
  EXPECT_EQ(committed.str(), config_markdown()) << "run: tera config --markdown > docs/config.md";
}

// A run that goes on, and a model that comes from a folder, ask what a key decides: none may leave that open.
TEST(ConfigKeys, EachSaysWhatItDecides) {
  for_each_value(RunConfig{}, [](const std::string& key, const Field& field, const void*) {
    EXPECT_NE(field.role, KeyRole::unsaid) << key;
    const bool of_model = key.starts_with("model.");
    EXPECT_TRUE(of_model || field.from_hf) << key << ": only keys of the model come from a Hugging Face folder";
    EXPECT_TRUE(of_model || field.role != KeyRole::shapes) << key;
    EXPECT_FALSE(field.from_hf && of_model && field.role == KeyRole::free) << key << ": a folder decides it";
  });
}

}  // namespace
}  // namespace tera::test
