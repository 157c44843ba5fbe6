// Sequences of 32,768 tokens over several ranks: they train as one rank does, in memory that falls as planned. Minutes,
// nearly all of them attention, so it has the label slow (make long-context).

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tera/train/data_source.h"
#include "tests/end_to_end/program.h"
#include "tests/parallel/sweep_expect.h"
#include "tests/support/paths.h"

namespace tera::test {
namespace {

constexpr std::int64_t length = 32768;

const Overrides one_long_sequence{fmt::format("train.seq_length={}", length), "train.micro_batch_size=1",
                                  "train.global_batch_size=1", "model.num_layers=2"};
// There are two query heads to a key head, and as many key heads as ranks, as Ulysses needs. The last id of the
// vocabulary, the end of a document, comes every few thousand tokens.
const Overrides model{"model.num_attention_heads=8", "model.num_query_groups=4", "model.vocab_size=1021",
                      "tokenizer.tokenizer_type=NullTokenizer"};

// The number of documents in the first sequence, and the tokens of the longest.
struct Documents {
  std::int64_t count = 0, longest = 0;
};
Documents documents_of(const SweepCase& one) {
  const tera::Setup setup = sweep_setup(one);
  const DataSource data = make_data_source(setup);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(length + 1));
  data.train->sample(0, ids);
  Documents found;
  for (std::int64_t begin = 0, i = 0; i < length; ++i) {
    if (ids[static_cast<std::size_t>(i)] != data.tokenizer->eod() && i + 1 < length) continue;
    found.longest = std::max(found.longest, i + 1 - begin);
    found.count += 1;
    begin = i + 1;
  }
  return found;
}

void expect_same_training(const Overrides& data, std::span<const Overrides> ways) {
  const SweepLimits limits{.steps = 2, .terms = length};
  const SweepCase one{.config = "sweep_llama", .overrides = one_long_sequence + model + data};
  SweepResult alone;
  run_on_threads(one, limits.steps, alone);
  for (const Overrides& how : ways) {
    SweepCase shared = one;
    shared.ranks = 4;
    shared.overrides = shared.overrides + cp4 + how;
    expect_like_one_rank(shared, alone, limits);
  }
}

TEST(LongContext, FourRanksTrainAsOne) { expect_same_training({}, std::vector{cp_ring, cp_all_gather, ulysses}); }

TEST(LongContext, FourRanksTrainAsOneOnPackedDocuments) {
  const Documents documents = documents_of({.config = "sweep_llama", .overrides = one_long_sequence + model});
  ASSERT_GE(documents.count, 4);
  ASSERT_GT(documents.longest, length / 4) << "none is longer than what a rank has";
  ASSERT_LT(documents.longest, length);
  expect_same_training(packed_documents, std::vector{cp_ring, cp_all_gather, ulysses});
}

nlohmann::json json_of(const std::string& arguments) {
  const Outcome outcome = run_program(arguments);
  EXPECT_EQ(outcome.status, 0) << arguments << "\n" << outcome.output;
  return nlohmann::json::parse(outcome.output);
}

// Bytes of all ranks: as `tera plan` has them, and as the system counted them for the process that the ranks were.
struct Bytes {
  double planned = 0, measured = 0;
};
Bytes bytes_of(int ranks, std::int64_t tokens) {
  const std::string config = fmt::format(
      "{} train.seq_length={} train.micro_batch_size=1 train.global_batch_size=1 model.num_layers=2 "
      "model.num_attention_heads=2 model.num_query_groups=1 model.ffn_hidden_size=512 dist.context_parallel_size={}",
      source_path("configs/tests/sweep_llama.yaml"), tokens, ranks);
  const auto plan = json_of("plan " + config + " --json");
  const auto run = json_of(fmt::format("bench step {} --ranks {} --steps 1 --warmup 0 --json", config, ranks));
  return {.planned = ranks * plan.at("total_bytes").get<double>(), .measured = run.at("peak_rss_bytes").get<double>()};
}

// The program, its libraries and the stacks and buffers of its ranks take 15 to 35 MB besides; a run on short sequences
// tells how much. The rest is the plan's, which is 700 MB on one rank.
TEST(LongContext, MemoryFallsAsPlanned) {
  double alone = 0;
  for (const int ranks : {1, 2, 4}) {
    const Bytes small = bytes_of(ranks, 64), large = bytes_of(ranks, length);
    const double outside = small.measured - small.planned;
    const double planned = large.planned / ranks, measured = (large.measured - outside) / ranks;
    if (ranks == 1) alone = measured;
    const std::string figures = fmt::format("cp {}: a rank has {:.1f} MB planned, {:.1f} measured, and {:.1f} outside",
                                            ranks, planned / 1e6, measured / 1e6, outside / ranks / 1e6);
    std::puts(figures.c_str());
    SCOPED_TRACE(figures);
    EXPECT_NEAR(measured, planned, 0.03 * planned);
    EXPECT_NEAR(measured, alone / ranks, 0.08 * alone / ranks) << "constants and the optimizer do not fall";
  }
}

}  // namespace
}  // namespace tera::test
