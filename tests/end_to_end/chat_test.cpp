// Runs on conversations, and evaluations on several sets, through the real program.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tera/data/indexed/indexed_writer.h"
#include "tests/end_to_end/program.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

class ChatRuns : public testing::Test {
 protected:
  Outcome train(const std::string& arguments) const {
    return run_program(
        fmt::format("train {}/tiny.yaml run.dir={} model.vocab_size=512 train.seq_length=64 "
                    "model.max_position_embeddings=64 optimizer.lr=5e-3 {}",
                    source_path("configs/tests"), run_folder_.string(), arguments));
  }
  std::vector<double> numbers(const std::string& key) const {
    std::vector<double> values;
    for (const std::string& text : column(run_folder_, key)) values.push_back(std::stod(text));
    return values;
  }
  // The answer to a number is the same number twice.
  std::string conversations(int begin, int end) const {
    std::string lines;
    for (int i = begin; i < end; ++i)
      lines += fmt::format(R"({{"messages":[{{"role":"system","content":"twice"}},{{"role":"user","content":"{0}"}},)"
                           R"({{"role":"assistant","content":"{0}{0}"}},{{"role":"system","content":"again"}},)"
                           R"({{"role":"user","content":"{1}"}},{{"role":"assistant","content":"{1}{1}"}}]}})"
                           "\n",
                           i % 7, i % 5);
    return lines;
  }
  std::string chat() const {
    return fmt::format(
        "dataset.kind=sft dataset.train_data_path={} dataset.valid_data_path={} "
        "'dataset.chat_format.system=S{{content}}.' 'dataset.chat_format.user=U{{content}}.' "
        "'dataset.chat_format.assistant=A{{content}}.'",
        folder_.write("train.jsonl", conversations(0, 40)).string(),
        folder_.write("valid.jsonl", conversations(40, 50)).string());
  }

  TempFolder folder_;
  std::filesystem::path run_folder_ = folder_ / "run";
};

// Conversations leave most of their sequences empty; dynamic context parallelism over two ranks needs fewer
// microbatches.
TEST_F(ChatRuns, DynamicContextParallelOfConversations) {
  const std::string run =
      chat() + " train.train_iters=8 train.micro_batch_size=1 train.global_batch_size=8 train.eval_iters=0 ";
  ASSERT_EQ(train(run).status, 0);
  const auto losses = numbers("loss"), norms = numbers("grad_norm");
  const Outcome outcome = train(run + "--ranks 2 dist.context_parallel_size=2 dist.dynamic_context_parallel=true");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto assigned = numbers("loss"), assigned_norms = numbers("grad_norm");
  ASSERT_EQ(assigned.size(), losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(assigned[i], losses[i], 1e-5 * losses[i]) << i;
    EXPECT_NEAR(assigned_norms[i], norms[i], 1e-4 * norms[i]) << i;
  }
  for (const double padding : numbers("padding")) EXPECT_LT(padding, 0.5) << "of sequences it is more";
}

TEST_F(ChatRuns, AnswersAreLearned) {
  const std::string run = chat() + " train.train_iters=60 train.eval_interval=30 dataset.full_validation=true";
  const Outcome outcome = train(run);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto losses = numbers("loss"), eval_losses = numbers("eval_loss");
  EXPECT_LT(losses.back(), 0.5 * losses.front());
  ASSERT_EQ(eval_losses.size(), 2u);
  EXPECT_LT(eval_losses.back(), 0.5 * losses.front());
  EXPECT_TRUE(contains(outcome.output, "samples of conversations")) << outcome.output;

  for (const char* layout : {"dist.tensor_model_parallel_size=2 dist.pipeline_model_parallel_size=2",
                             "dist.context_parallel_size=4", "dist.context_parallel_size=2 dist.cp_comm_type=a2a"}) {
    const Outcome shared = train(fmt::format("{} --ranks 4 {}", run, layout));
    ASSERT_EQ(shared.status, 0) << shared.output;
    const auto same = numbers("loss");
    ASSERT_EQ(same.size(), losses.size());
    for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(same[i], losses[i], 1e-4 * losses[i]) << layout << " " << i;
  }
}

TEST_F(ChatRuns, SamplesCanBeLookedAt) {
  const Outcome outcome = run_program(fmt::format(
      "dataset {}/tiny.yaml model.vocab_size=512 train.seq_length=26 {} --split train --samples 0:1 --fields "
      "tokens,loss_mask,position_ids",
      source_path("configs/tests"), chat()));
  // Stwice.U0.A00.Sagain.U0.A00. has 28 bytes, and is cut to 26.
  EXPECT_TRUE(contains(outcome.output, R"("loss_mask":[0,0,0,0,0,0,0,0,0,0,1,1,1,0,0,0,0,0,0,0,0,0,0,0,1,0])"))
      << outcome.output;
  EXPECT_TRUE(contains(outcome.output, R"("position_ids":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,0,1,2,3,4,5,6,7,8,9,10,11])"))
      << outcome.output;
  EXPECT_TRUE(contains(outcome.output, R"({"index":0,"tokens":[83,116,119,105,99,101,46,85,48,46,65,48,48,46,83)"))
      << outcome.output;
}

TEST_F(ChatRuns, ABadLineEndsTheRunWithItsNumber) {
  const auto bad = folder_.write("bad.jsonl", conversations(0, 3) + "{\"messages\":[{\"role\":\"user\"}]}\n");
  const Outcome outcome =
      train("dataset.kind=sft dataset.split='1' train.eval_iters=0 dataset.data_path=" + bad.string());
  EXPECT_EQ(outcome.status, 2);
  EXPECT_TRUE(contains(outcome.output, "bad.jsonl:4: messages[0].content: text was expected")) << outcome.output;
  EXPECT_FALSE(std::filesystem::exists(run_folder_));
}

TEST_F(ChatRuns, SamplesWithoutTargetAreReported) {
  const auto with_question = [&](int length) {
    return fmt::format(R"({{"messages":[{{"role":"user","content":"{}"}},{{"role":"assistant","content":"b"}}]}})"
                       "\n",
                       std::string(static_cast<std::size_t>(length), 'a'));
  };
  folder_.write("chat/1.jsonl", with_question(100));
  const std::string run =
      " dataset.kind=sft dataset.split='1' train.train_iters=3 train.eval_iters=0 "
      "'dataset.chat_format.user=U{content}' 'dataset.chat_format.assistant=A{content}' "
      "'dataset.data_path=" +
      (folder_ / "chat/*.jsonl").string() + "'";
  const Outcome none = train(run);
  EXPECT_EQ(none.status, 2);
  EXPECT_TRUE(contains(none.output, "none of the 1 samples of the train split has a target")) << none.output;
  folder_.write("chat/2.jsonl", with_question(5) + with_question(200));
  const Outcome some = train(run);
  EXPECT_EQ(some.status, 0) << some.output;
  EXPECT_TRUE(contains(some.output,
                       "warning: 2 of the 3 samples of the train split have no target: no answer of an "
                       "assistant within train.seq_length=64 tokens"))
      << some.output;
}

void write_numbers(const std::filesystem::path& prefix, std::int32_t first, std::int32_t step) {
  IndexedWriter writer(prefix.string(), TokenType::u16);
  for (std::int32_t document = 0; document < 20; ++document) {
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < 50; ++i) ids.push_back(first + i * step % 40);
    writer.add_document(ids);
  }
  writer.finish();
}

// The mean over all tokens is the mean of the sets' means where they have as many.
TEST_F(ChatRuns, EachValidationSetHasALoss) {
  write_numbers(folder_ / "one", 0, 1);
  write_numbers(folder_ / "two", 100, 3);
  const std::string one = (folder_ / "one").string(), two = (folder_ / "two").string();
  const Outcome outcome =
      train(fmt::format("dataset.kind=indexed tokenizer.tokenizer_type=NullTokenizer dataset.train_data_path={0} "
                        "dataset.valid_data_path=[{0},{1}] dataset.multiple_validation_sets=true train.train_iters=20 "
                        "train.eval_interval=10 train.eval_iters=2",
                        one, two));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto all = numbers("eval_loss"), first = numbers("eval_loss/one"), second = numbers("eval_loss/two");
  ASSERT_EQ(all.size(), 2u);
  ASSERT_EQ(first.size(), 2u);
  ASSERT_EQ(second.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(all[i], (first[i] + second[i]) / 2, 1e-9);
  EXPECT_LT(first[1], second[1] - 1) << "only the first is trained on";
  EXPECT_TRUE(contains(outcome.output, "  two | loss ")) << outcome.output;
}

}  // namespace
}  // namespace tera::test
