// Blends and splits against numbers that a script made with numpy and Megatron-LM's rules.

#include <gtest/gtest.h>

#include <functional>

#include "tera/base/error.h"
#include "tera/data/blended_dataset.h"
#include "tera/data/indexed/indexed_builder.h"
#include "tera/data/indexed/indexed_writer.h"
#include "tera/data/once_dataset.h"
#include "tera/setup/resolve.h"
#include "tera/train/data_source.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using Ids = std::vector<std::int32_t>;

// FNV-1a over numbers instead of bytes.
class Checksum {
 public:
  template <class Range>
  Checksum& add(const Range& values) {
    for (const auto value : values)
      hash_ = (hash_ ^ static_cast<std::uint64_t>(std::int64_t{value})) * 0x100000001b3ULL;
    return *this;
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
};

std::vector<double> made_up_weights(std::size_t count) {
  std::vector<double> weights(count);
  for (std::size_t i = 0; i < count; ++i) weights[i] = 1.0 / static_cast<double>(i * i % 17 + 3);
  return weights;
}

TEST(Blend, SumsInNumpysOrder) {
  const std::vector<std::pair<std::size_t, double>> sums{
      {1, 0x1.5555555555555p-2},   {7, 0x1.272f3bd51e15ep+0},   {8, 0x1.35681f6356f96p+0},
      {9, 0x1.45681f6356f96p+0},   {16, 0x1.f57ae971589d7p+0},  {100, 0x1.9b89e5f0702cfp+3},
      {128, 0x1.0bbc4817cc348p+4}, {129, 0x1.0cbc4817cc348p+4}, {1000, 0x1.03b2d85d4b095p+7}};
  for (const auto& [count, sum] : sums) EXPECT_EQ(pairwise_sum(made_up_weights(count)), sum) << count;
}

TEST(Blend, TakesTurnsByWeight) {
  using Order = std::vector<std::int16_t>;
  EXPECT_EQ(blend_by_weight(std::vector{0.3, 0.7}, 10).dataset, (Order{1, 0, 1, 1, 0, 1, 1, 0, 1, 1}));
  EXPECT_EQ(blend_by_weight(std::vector{0.5, 0.25, 0.25}, 8).dataset, (Order{0, 1, 2, 0, 0, 1, 2, 0}));
  const BlendIndex many = blend_by_weight(normalized(made_up_weights(20)), 5000);
  EXPECT_EQ(Checksum().add(many.dataset).value(), 0x8fea9004d38812b5U);
  EXPECT_EQ(Checksum().add(many.sample).value(), 0x93772cfca344fba9U);

  const BlendIndex all = blend_all(std::vector<std::int64_t>{2, 5, 3});
  EXPECT_EQ(all.dataset, (Order{1, 2, 0, 1, 2, 1, 0, 1, 2, 1}));
  EXPECT_EQ(all.sample, (std::vector<std::int64_t>{0, 0, 0, 1, 1, 2, 1, 3, 2, 4}));
  const BlendIndex more = blend_all(std::vector<std::int64_t>{100, 1, 37, 250});
  EXPECT_EQ(Checksum().add(more.dataset).value(), 0xfbe3d445c60cd4a2U);
  EXPECT_EQ(Checksum().add(more.sample).value(), 0x5995875dee55bf90U);
  EXPECT_EQ(blend_all(std::vector<std::int64_t>{0, 2}).dataset, (Order{1, 1}));
}

// Three datasets of 1000, 400 and 37 documents; every token of all of them is another number.
class ThreeDatasets : public testing::Test {
 protected:
  void SetUp() override {
    write("a", 1000, 90, 1, 0);
    write("b", 400, 200, 2, 100000);
    write("c", 37, 500, 3, 200000);
  }
  void write(const char* name, int count, std::uint32_t below, std::uint32_t seed, std::int32_t first) const {
    IndexedWriter writer((folder_ / name).string(), TokenType::i32);
    for (int i = 0; i < count; ++i) {
      seed = seed * 1664525U + 1013904223U;
      Ids document((seed >> 16) % below);
      for (std::int32_t& id : document) id = first++;
      writer.add_document(document);
    }
    writer.finish();
  }
  std::string prefix(const char* name) const { return (folder_ / name).string(); }
  std::vector<std::string> all() const { return {prefix("a"), prefix("b"), prefix("c")}; }

  const TempFolder folder_;
};

std::uint64_t checksum_of(const Dataset& dataset, std::size_t ids) {
  Checksum sum;
  Ids sample(ids);
  for (std::int64_t i = 0; i < dataset.samples(); ++i) {
    dataset.sample(i, sample);
    sum.add(sample);
  }
  return sum.value();
}

TEST_F(ThreeDatasets, GiveMegatronsSamplesInItsOrder) {
  struct Case {
    IndexedSplit split;
    std::uint32_t seed;
    std::int64_t samples;
    std::uint64_t checksum;
    bool drop_last = true;
  };
  const double three_parts = 70.0 / 100;  // the splits' parts are 0.7, 0.2 and 0.1
  const auto default_bounds = split_bounds({.train = 969.0 / 1000, .valid = 30.0 / 1000, .test = 1.0 / 1000});
  const auto other = split_bounds({.train = three_parts, .valid = 20.0 / 100, .test = 10.0 / 100});
  const std::string a = prefix("a");
  const std::vector<Case> cases{
      {{DataSplit::train, {{a}, {}}, default_bounds[0], default_bounds[1], 2000}, 1234, 2665, 0x740b001f8a9860f1},
      {{DataSplit::valid, {{a}, {}}, other[1], other[2], 100}, 1234, 261, 0x2e7a51a3ae65829f},
      {{DataSplit::train, {{a}, {3.0}}, other[0], other[1], 2000}, 1234, 2000, 0xbba578cfb29803d8},
      {{DataSplit::train, {all(), {0.3, 0.5, 0.2}}, other[0], other[1], 3000}, 7, 3000, 0xa0059e97c7d00517},
      {{DataSplit::train, {all(), {}}, other[0], other[1], 700}, 7, 700, 0xd4d3caf69d38e43b},
      {{DataSplit::test, {all(), {}}, other[2], other[3], 100000}, 7, 275, 0x99cb080a806b9e92},
      {{DataSplit::valid, {all(), {}}, other[1], other[2], {}}, 7, 586, 0x7dfa8e4c64193530},
      {{DataSplit::valid, {{prefix("b")}, {}}, other[1], other[2], {}}, 7, 264, 0x95090a9eb6f798ee, false},
  };
  for (const bool cached : {false, true, true})
    for (const Case& c : cases) {
      IndexedBuilder builder({.seq_length = 32,
                              .vocab_size = 300000,
                              .seed = c.seed,
                              .drop_last_partial_validation = c.drop_last,
                              .cache_path = cached ? (folder_ / "cache").string() : ""});
      const auto dataset = builder.build(c.split);
      ASSERT_TRUE(dataset);
      EXPECT_EQ(dataset->samples(), c.samples);
      EXPECT_EQ(checksum_of(*dataset, 33), c.checksum) << c.samples;
    }
}

TEST_F(ThreeDatasets, LonePrefixesSplitsOfNoWidthAndShortBlends) {
  IndexedBuilder builder({.seq_length = 32, .vocab_size = 300000, .surplus = 0});
  IndexedSplit split{.blend = {{prefix("a")}, {2.0}}, .samples = 500, .lone_prefix_is_plain = true};
  const std::int64_t plain = builder.build(split)->samples();
  EXPECT_EQ(plain, (builder.tokens() - 1) / 32);  // all that an epoch holds
  split.lone_prefix_is_plain = false;
  EXPECT_EQ(builder.build(split)->samples(), 500);  // a blend of one
  EXPECT_EQ(builder.documents(), 1000);
  split.end = 0;
  EXPECT_EQ(builder.build(split), nullptr);
  split.end = 1, split.blend = {};
  EXPECT_EQ(builder.build(split), nullptr);

  split = {.split = DataSplit::test, .blend = {all(), {}}, .begin = 1 - 1e-9, .end = 1, .samples = 10};
  EXPECT_EQ(builder.build(split)->samples(), 0);  // no documents, and nothing is made of them
  split.blend.weights = {1, 1, 1};
  EXPECT_TRUE(contains(message_of<UserError>([&] { builder.build(split); }), "the test split of"));
  split.samples = {};
  EXPECT_THROW(builder.build(split), UserError);
}

TEST(BlendedDataset, TakesNoMoreOfADatasetThanItHas) {
  class Few : public Dataset {
   public:
    std::int64_t samples() const override { return 2; }
    void sample(std::int64_t index, std::span<std::int32_t> tokens) const override {
      tokens[0] = static_cast<std::int32_t>(index);
    }
  };
  const auto two = [] {
    std::vector<std::unique_ptr<Dataset>> datasets;
    for (int i = 0; i < 2; ++i) datasets.push_back(std::make_unique<Few>());
    return datasets;
  };
  const std::vector<double> weights{0.25, 0.75};
  EXPECT_TRUE(contains(message_of<UserError>([&] { BlendedDataset blend(two(), blend_by_weight(weights, 4)); }),
                       "3 samples of its dataset number 2, which has 2: raise dataset.mid_level_dataset_surplus"));
  const BlendedDataset blend(two(), blend_by_weight(weights, 3));
  Ids one(1), seen;
  for (std::int64_t i = 0; i < 6; ++i) blend.sample(i, one), seen.push_back(one[0]);
  EXPECT_EQ(seen, (Ids{0, 0, 1, 0, 0, 1}));

  const OnceDataset once(std::make_unique<Few>());
  Ids past(3);
  once.sample(2, past);
  EXPECT_EQ(past, (Ids{-1, -1, -1}));
  EXPECT_TRUE(once.has_gaps());
}

RunConfig small_run() {
  RunConfig config;
  config.model.arch = &family_named("llama");
  config.model.num_layers = 1;
  config.model.hidden_size = 32;
  config.model.num_attention_heads = 2;
  config.model.vocab_size = 300000;
  config.optimizer.lr = 1e-3;
  config.train.train_iters = 25;
  config.train.global_batch_size = 4;
  config.train.seq_length = 32;
  config.train.eval_interval = 10;
  config.train.eval_iters = 3;
  config.tokenizer.tokenizer_type = TokenizerKind::null;
  config.dataset.kind = DatasetKind::indexed;
  return config;
}

TEST_F(ThreeDatasets, AreReadByARun) {
  RunConfig config = small_run();
  config.dataset.data_path = {"0.25", prefix("a"), "0.75", prefix("b")};
  config.dataset.split = "70,20,10";
  const tera::Setup setup = resolve(config);
  EXPECT_EQ(samples_asked(setup, DataSplit::train), 100);
  EXPECT_EQ(samples_asked(setup, DataSplit::valid), (25 / 10 + 1) * 3 * 4);
  EXPECT_EQ(samples_asked(setup, DataSplit::test), 12);
  const DataSource source = make_data_source(setup);
  EXPECT_EQ(source.train->samples(), 100);
  ASSERT_EQ(source.valid.size(), 1u);
  EXPECT_EQ(source.valid[0].dataset->samples(), 36);
  EXPECT_EQ(source.valid[0].batches, 3);
  EXPECT_EQ(make_split(setup, DataSplit::test)->samples(), 12);
  EXPECT_TRUE(contains(source.summary, "tokens in 1400 documents")) << source.summary;

  config.dataset.data_path.clear();
  config.dataset.blend = {{prefix("a"), 0.25}, {prefix("b"), 0.75}};
  EXPECT_EQ(checksum_of(*make_data_source(resolve(config)).train, 33), checksum_of(*source.train, 33));

  config.dataset.blend.clear();
  config.dataset.train_data_path = {prefix("b")};
  EXPECT_TRUE(make_data_source(resolve(config)).valid.empty());
  config.dataset.valid_data_path = {prefix("c"), prefix("a")};
  config.dataset.full_validation = true;
  const DataSource full = make_data_source(resolve(config));
  ASSERT_EQ(full.valid.size(), 1u);
  EXPECT_EQ(full.valid[0].batches, (full.valid[0].dataset->samples() + 3) / 4);
  IndexedBuilder builder({.seq_length = 32, .vocab_size = 300000, .seed = 1234});
  std::int64_t once = 0;
  for (const char* name : {"a", "c"}) once += builder.build({.blend = {{prefix(name)}, {}}})->samples();
  EXPECT_EQ(full.valid[0].dataset->samples(), once);

  // Each validation set is read by itself.
  config.dataset.multiple_validation_sets = true;
  const DataSource several = make_data_source(resolve(config));
  ASSERT_EQ(several.valid.size(), 2u);
  EXPECT_EQ(several.valid[0].name, "c");
  EXPECT_EQ(several.valid[1].name, "a");
  EXPECT_EQ(several.valid[0].dataset->samples() + several.valid[1].dataset->samples(), once);
}

TEST_F(ThreeDatasets, ThatAreTooSmallForTheRunAreRefused) {
  RunConfig config = small_run();
  config.dataset.data_path = {prefix("a"), prefix("c")};
  config.train.train_iters = 10000;
  EXPECT_TRUE(contains(message_of<UserError>([&] { make_data_source(resolve(config)); }),
                       "the run reads 40000 samples, and the datasets"));
  config.dataset.data_path = {prefix("a")};
  config.dataset.split = "0,1,0";
  EXPECT_TRUE(
      contains(message_of<UserError>([&] { make_data_source(resolve(config)); }), "gives the training data nothing"));
  config.dataset.data_path = {prefix("none")};
  config.dataset.split = "1";
  EXPECT_TRUE(contains(message_of<UserError>([&] { make_data_source(resolve(config)); }), "none.idx: No such file"));
}

TEST(ResolveIndexed, RefusesPathsThatDoNotFitTogether) {
  struct Case {
    std::function<void(RunConfig&)> change;
    const char* key;
    const char* rule;
  };
  using Paths = std::vector<std::string>;
  const std::vector<Case> cases{
      {[](RunConfig&) {}, "dataset.data_path is not given", "needs a prefix"},
      {[](RunConfig& c) { c.dataset.valid_data_path = {"v"}; }, "dataset.train_data_path is not given", "prefix"},
      {[](RunConfig& c) {
         c.dataset.data_path = {"0.5", "a", "b", "c"};
       },
       "dataset.data_path", "come in pairs, the weight first"},
      {[](RunConfig& c) {
         c.dataset.data_path = {"a", "0.3", "b", "0.7"};
       },
       "dataset.data_path", "come in pairs, the weight first"},
      {[](RunConfig& c) {
         c.dataset.data_path = {"0.3", "a", "0.7"};
       },
       "dataset.data_path", "come in pairs, the weight first"},
      {[](RunConfig& c) { c.dataset.data_path = {"0.3"}; }, "dataset.data_path", "./7"},
      {[](RunConfig& c) {
         c.dataset.data_path = {"a", ""};
       },
       "dataset.data_path", "empty path"},
      {[](RunConfig& c) {
         c.dataset.data_path = {"0", "a", "1", "b"};
       },
       "dataset.data_path", "above 0"},
      {[](RunConfig& c) {
         c.dataset.data_path = {"-1", "a"};
       },
       "dataset.data_path", "above 0"},
      {[](RunConfig& c) {
         c.dataset.data_path = {"inf", "a"};
       },
       "dataset.data_path", "finite"},
      {[](RunConfig& c) {
         c.dataset.data_path = {"nan", "a"};
       },
       "dataset.data_path", "finite"},
      {[](RunConfig& c) {
         c.dataset.data_path = {"1e308", "a", "1e308", "b"};
       },
       "dataset.data_path", "finite"},
      {[](RunConfig& c) {
         c.dataset.blend = {{"a", -2}};
       },
       "dataset.blend", "above 0"},
      {[](RunConfig& c) {
         c.dataset.blend = {{"a", 1}}, c.dataset.data_path = {"b"};
       },
       "dataset.blend", "either"},
      {[](RunConfig& c) { c.dataset.data_path = c.dataset.train_data_path = {"b"}; }, "dataset.data_path", "either"},
      {[](RunConfig& c) { c.dataset.data_path = {"a"}, c.train.seed = std::int64_t{1} << 32; }, "train.seed",
       "4294967295"},
      {[](RunConfig& c) {
         c.dataset.data_path = {"1", "a"}, c.dataset.full_validation = true;
       },
       "dataset.full_validation", "weights"},
      {[](RunConfig& c) {
         c.dataset.kind = DatasetKind::mock, c.dataset.blend = {{"a", 1}};
       },
       "dataset.blend", "only dataset.kind=indexed"},
      {[](RunConfig& c) { c.dataset.kind = DatasetKind::mock, c.dataset.test_data_path = {"a"}; },
       "dataset.test_data_path", "only dataset.kind=indexed"},
  };
  for (const Case& c : cases) {
    RunConfig config = small_run();
    c.change(config);
    const std::string message = message_of<UserError>([&] { resolve(config); });
    EXPECT_TRUE(contains(message, c.key) && contains(message, c.rule)) << c.key << " / " << message;
  }
  RunConfig config = small_run();
  config.dataset.data_path = {"a", "b", "c"};
  EXPECT_EQ(resolve(config).indexed.blends[2], (BlendShape{{"a", "b", "c"}, {}}));
  config.dataset.data_path = {"a", "./1"};
  EXPECT_EQ(resolve(config).indexed.blends[0].prefixes, (Paths{"a", "./1"}));
}

}  // namespace
}  // namespace tera::test
