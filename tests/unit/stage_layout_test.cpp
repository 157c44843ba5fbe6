#include "tera/parallel/stage_layout.h"

#include <gtest/gtest.h>

#include "tera/base/error.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

std::vector<int> layers_of(const std::vector<StageBlocks>& stages) {
  std::vector<int> layers;
  for (const auto& stage : stages) layers.push_back(stage.layers);
  return layers;
}

// Every layer is there once and in order, whatever the request was.
void expect_complete(const StageLayout& layout, int num_layers) {
  ASSERT_EQ(static_cast<int>(layout.stages.size()), layout.placement.virtual_stages());
  int next = 0;
  for (std::size_t i = 0; i < layout.stages.size(); ++i) {
    EXPECT_EQ(layout.stages[i].first_layer, next);
    EXPECT_EQ(layout.stages[i].embedding, i == 0);
    EXPECT_EQ(layout.stages[i].loss, i + 1 == layout.stages.size());
    next += layout.stages[i].layers;
  }
  EXPECT_EQ(next, num_layers);
}

std::string mistake(const LayoutRequest& request) {
  return message_of<UserError>([&] { place_layers(request); });
}

TEST(Placement, LoopAndVAreInverse) {
  for (int stages = 1; stages <= 16; ++stages)
    for (int chunks = 1; chunks <= 8; ++chunks)
      for (const auto kind : {PlacementKind::loop, PlacementKind::v}) {
        const Placement placement{stages, chunks, kind};
        if (kind == PlacementKind::v && chunks != 2) continue;
        for (int stage = 0; stage < placement.virtual_stages(); ++stage) {
          const int rank = placement.rank_of(stage);
          ASSERT_TRUE(rank >= 0 && rank < stages);
          EXPECT_EQ(placement.virtual_stage(rank, placement.chunk_of(stage)), stage);
        }
      }
  const Placement v{4, 2, PlacementKind::v};
  EXPECT_EQ(v.virtual_stage(0, 1), 7);
  EXPECT_EQ(v.virtual_stage(3, 1), 4);
  EXPECT_EQ(v.rank_of(5), 2);
}

TEST(StageLayout, EvenAsInMegatron) {
  const auto layout = place_layers({.placement = {4, 2}, .num_layers = 24});
  expect_complete(layout, 24);
  for (int rank = 0; rank < 4; ++rank) {  // starts (0,12) (3,15) (6,18) (9,21)
    EXPECT_EQ(layout.of(rank, 0).first_layer, 3 * rank);
    EXPECT_EQ(layout.of(rank, 1).first_layer, 12 + 3 * rank);
  }
}

TEST(StageLayout, FirstAndLastCounts) {
  const auto layout = place_layers({.placement = {4, 2}, .num_layers = 26, .num_layers_in_first_pipeline_stage = 8});
  expect_complete(layout, 26);
  const int starts[4][2] = {{0, 13}, {4, 17}, {7, 20}, {10, 23}};
  for (int rank = 0; rank < 4; ++rank)
    for (int chunk = 0; chunk < 2; ++chunk) EXPECT_EQ(layout.of(rank, chunk).first_layer, starts[rank][chunk]);
  const auto both = place_layers({.placement = {4},
                                  .num_layers = 12,
                                  .num_layers_in_first_pipeline_stage = 2,
                                  .num_layers_in_last_pipeline_stage = 2});
  EXPECT_EQ(layers_of(both.stages), (std::vector{2, 4, 4, 2}));
  const auto two = place_layers({.placement = {2},
                                 .num_layers = 5,
                                 .num_layers_in_first_pipeline_stage = 3,
                                 .num_layers_in_last_pipeline_stage = 2});
  EXPECT_EQ(layers_of(two.stages), (std::vector{3, 2}));
}

TEST(StageLayout, Llama405bCountsEmbeddingAndLoss) {
  const auto layout = place_layers({.placement = {16, 8},
                                    .num_layers = 126,
                                    .account_for_embedding_in_pipeline_split = true,
                                    .account_for_loss_in_pipeline_split = true});
  expect_complete(layout, 126);
  ASSERT_EQ(layout.stages.size(), 128u);
  EXPECT_EQ(layout.stages.front(), (StageBlocks{.embedding = true}));
  EXPECT_EQ(layout.stages.back(), (StageBlocks{.first_layer = 126, .loss = true}));
  for (int stage = 1; stage < 127; ++stage)
    EXPECT_EQ(layout.stages[static_cast<std::size_t>(stage)], (StageBlocks{.first_layer = stage - 1, .layers = 1}));
}

TEST(LayoutString, AsPublished) {
  const auto llama70b = place_layers(
      {.placement = {8, 5}, .num_layers = 80, .pipeline_model_parallel_layout = "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL"});
  expect_complete(llama70b, 80);
  EXPECT_EQ(llama70b.stages[35], (StageBlocks{.first_layer = 70, .layers = 3}));
  EXPECT_EQ(llama70b.stages[39], (StageBlocks{.first_layer = 79, .layers = 1, .loss = true}));
  const auto kimi = parse_layout("Et|(tt|)*30L");
  EXPECT_EQ(kimi.size(), 32u);
  EXPECT_EQ(kimi.back(), (StageBlocks{.first_layer = 61, .loss = true}));
  const auto deepseek = parse_layout("Et*3|(tt|)*29,m|L");
  EXPECT_EQ(deepseek.size(), 32u);
  EXPECT_EQ(deepseek[30], (StageBlocks{.first_layer = 61, .mtp_layers = 1}));
}

TEST(LayoutString, Forms) {
  const std::pair<const char*, std::vector<int>> cases[] = {
      {"EttL", {2}},
      {"E|tt|L", {0, 2, 0}},
      {"Et||tL", {1, 0, 1}},
      {"Et|*3,tL", {1, 0, 0, 1}},
      {"E(|t)*2|L", {0, 1, 1, 0}},
      {"E(t)*3L", {3}},
      {"E, t*2 |, t L", {2, 1}},
      {"Et*0|tL", {0, 1}},
      {"E(t*2|t|)*2,L", {2, 1, 2, 1, 0}},
  };
  for (const auto& [text, layers] : cases) EXPECT_EQ(layers_of(parse_layout(text)), layers) << text;
  EXPECT_TRUE(parse_layout("Et||tL")[1].empty());
}

TEST(LayoutString, MistakesSayWhereAndWhy) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "ends too early: the first stage begins with E"},
      {"t|L", "'t' at position 1: the first stage begins with E"},
      {"|EtL", "'|' at position 1: the first stage begins with E"},
      {"Et|t", "'t' at position 4: the last stage ends with L"},
      {"EtL|", "'|' at position 4: the last stage ends with L"},
      {"EtEL", "'E' at position 3: E stands once"},
      {"EtLtL", "'L' at position 3: L stands once"},
      {"Ex|L", "'x' at position 2: valid are E (embedding)"},
      {"Et*|L", "'*' at position 3: '*' needs a number"},
      {"E*", "'*' at position 2: '*' needs a number"},
      {"*2EL", "'*' at position 1: '*' follows"},
      {"Et*2*3L", "'*' at position 5: '*' follows"},
      {"Et2L", "'2' at position 3: a number stands only behind '*'"},
      {"E(t|*3L", "'(' at position 2: this parenthesis is not closed"},
      {"E(t|)L", "'L' at position 6: a group in parentheses is followed by '*'"},
      {"E(t|)", "ends too early: a group in parentheses is followed by '*'"},
      {"E((t|)*2)*2L", "'(' at position 3: groups do not nest"},
      {"Et|)L", "')' at position 4: there is no '('"},
      {"E()*2L", "'(' at position 2: there is nothing between"},
      {"Et*99999999999999999999L", "'*' at position 3: this unrolls to more than 65536 symbols"},
      {"E(t*60000)*60000L", "'*' at position 11: this unrolls to more than 65536 symbols"},
      {"Emt|L", "'t' at position 3: layers stand before m"},
      {"Etm|mL", "'m' at position 5: all m stand in one stage"},
  };
  for (const auto& [text, expected] : cases) {
    const auto message = message_of<UserError>([&, layout = text] { parse_layout(layout); });
    EXPECT_TRUE(contains(message, expected)) << text << ": " << message;
    EXPECT_TRUE(contains(message, "dist.pipeline_model_parallel_layout")) << message;
  }
}

// Returns the text that follows `words`, up to the first of `ends`.
std::string part_of(const std::string& message, std::string_view words, std::string_view ends) {
  const std::size_t at = message.find(words);
  if (at == std::string::npos) return {};
  const std::string rest = message.substr(at + words.size());
  return rest.substr(0, rest.find_first_of(ends));
}

// What is proposed where layers cannot be split evenly works, and no stage is far above the others.
TEST(StageLayout, WhatIsProposedWorks) {
  int layouts = 0, last_alone = 0, both_ends = 0;
  for (int stages = 2; stages <= 20; ++stages)
    for (int chunks = 1; chunks <= 3; ++chunks)
      for (int layers = 1; layers <= 64; ++layers) {
        if (layers % (stages * chunks) == 0) continue;
        const LayoutRequest request{.placement = {stages, chunks}, .num_layers = layers, .mtp_num_layers = layers % 3};
        const std::string message = mistake(request);
        LayoutRequest written = request;
        written.pipeline_model_parallel_layout = part_of(message, "_parallel_layout such as '", "'");
        const StageLayout layout = place_layers(written);
        expect_complete(layout, layers);
        for (const StageBlocks& stage : layout.stages)
          EXPECT_TRUE(stage.layers == layers / (stages * chunks) || stage.layers == layers / (stages * chunks) + 1);
        ++layouts;
        LayoutRequest ends = request;
        const std::string last = part_of(message, "num_layers_in_last_pipeline_stage=", ", ");
        const std::string first = part_of(message, "num_layers_in_first_pipeline_stage=", ", ");
        if (last.empty()) continue;
        ends.num_layers_in_last_pipeline_stage = std::stoi(last);
        if (!first.empty()) ends.num_layers_in_first_pipeline_stage = std::stoi(first);
        (first.empty() ? last_alone : both_ends) += 1;
        expect_complete(place_layers(ends), layers);
      }
  EXPECT_TRUE(layouts > 1000 && last_alone > 100 && both_ends > 10) << layouts << " " << last_alone << " " << both_ends;
  const std::string deepseek = mistake({.placement = {16}, .num_layers = 61, .mtp_num_layers = 1});
  EXPECT_TRUE(contains(deepseek,
                       "is valid (1, 61), or dist.num_layers_in_last_pipeline_stage=1, or "
                       "dist.pipeline_model_parallel_layout such as 'Et*3|(t*4|)*13t*3|t*3mL'"))
      << deepseek;
}

TEST(StageLayout, MistakesNameTheRule) {
  EXPECT_TRUE(contains(mistake({.placement = {5}, .num_layers = 24}), "24 layers cannot be split evenly over 5"));
  EXPECT_TRUE(contains(mistake({.placement = {5}, .num_layers = 24}), "(1, 2, 3, 4, 6, 8, 12, 24)"));
  EXPECT_TRUE(contains(mistake({.placement = {5}, .num_layers = 24}), "_split=true or dist.account_for_loss"));
  EXPECT_TRUE(contains(mistake({.placement = {16, 8}, .num_layers = 126}), "_split=true and dist.account_for_loss"));
  EXPECT_FALSE(contains(mistake({.placement = {5}, .num_layers = 22}), "account_for"));
  EXPECT_TRUE(contains(mistake({.placement = {4}, .num_layers = 12, .account_for_loss_in_pipeline_split = true}),
                       "1 counted as layers"));
  EXPECT_TRUE(
      contains(mistake({.placement = {4}, .num_layers = 12, .num_layers_in_first_pipeline_stage = 13}), "do not fit"));
  EXPECT_TRUE(contains(mistake({.placement = {4}, .num_layers = 12, .num_layers_in_first_pipeline_stage = 2}),
                       "10 are left for the 3 pipeline stages"));
  EXPECT_TRUE(contains(mistake({.placement = {1}, .num_layers = 12, .num_layers_in_first_pipeline_stage = 2}),
                       "10 are left for the 0 pipeline stages"));
  EXPECT_TRUE(contains(mistake({.placement = {4, 2}, .num_layers = 15, .num_layers_in_first_pipeline_stage = 3}),
                       "the first pipeline stage of 3 layers"));
  EXPECT_TRUE(contains(mistake({.placement = {4, 2}, .num_layers = 11, .num_layers_in_first_pipeline_stage = 2}),
                       "a pipeline stage of 3 layers"));
  EXPECT_TRUE(contains(mistake({.placement = {2},
                                .num_layers = 4,
                                .num_layers_in_first_pipeline_stage = 2,
                                .pipeline_model_parallel_layout = "Ett|ttL"}),
                       "only one of"));
  EXPECT_TRUE(contains(mistake({.placement = {2}, .num_layers = 4, .pipeline_model_parallel_layout = "Et|t|t|tL"}),
                       "has 4 stages where 2 pipeline stages x 1 virtual stages = 2 are needed; "
                       "dist.virtual_pipeline_model_parallel_size=2 would fit"));
  EXPECT_TRUE(contains(mistake({.placement = {2}, .num_layers = 5, .pipeline_model_parallel_layout = "Ett|ttL"}),
                       "places 4 layers (t) where model.num_layers is 5"));
  EXPECT_TRUE(contains(
      mistake({.placement = {2}, .num_layers = 4, .mtp_num_layers = 1, .pipeline_model_parallel_layout = "Ett|ttL"}),
      "places 0 extra prediction heads"));
  EXPECT_TRUE(contains(
      mistake({.placement = {3}, .num_layers = 4, .mtp_num_layers = 2, .pipeline_model_parallel_layout = "Ett|ttmm|L"}),
      "put m and L into one stage, as in ...|m*2L"));
  EXPECT_EQ(place_layers(
                {.placement = {2}, .num_layers = 4, .mtp_num_layers = 2, .pipeline_model_parallel_layout = "Ettt|tmmL"})
                .stages[1],
            (StageBlocks{.first_layer = 3, .layers = 1, .mtp_layers = 2, .loss = true}));
  EXPECT_TRUE(contains(mistake({.placement = {0}, .num_layers = 4}), "each must be at least 1"));
  EXPECT_TRUE(contains(mistake({.placement = {2}}), "model.num_layers is 0"));
  EXPECT_TRUE(contains(mistake({.placement = {2, 3, PlacementKind::v}, .num_layers = 6}), "in a V has 2"));
}

TEST(StageLayout, Table) {
  EXPECT_EQ(place_layers({.placement = {2, 2}, .num_layers = 3, .pipeline_model_parallel_layout = "Ett||t|L"}).table(),
            "rank 0   embedding layers 0-1  layer 2\n"
            "rank 1   (empty)               loss\n");
}

}  // namespace
}  // namespace tera::test
