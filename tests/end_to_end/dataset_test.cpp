// tera dataset: the samples of a run, as other programs read them.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tera/data/indexed/indexed_writer.h"
#include "tests/end_to_end/program.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

// Six documents of Megatron-LM's known order; token 41 is the second of document 4, and each ends with 99.
class DatasetCommand : public testing::Test {
 protected:
  void SetUp() override {
    IndexedWriter writer((folder_ / "d").string(), TokenType::u16);
    std::int32_t document = 0;
    for (const std::int32_t length : {5, 3, 7, 2, 9, 4}) {
      std::vector<std::int32_t> ids;
      for (std::int32_t i = 0; i + 1 < length; ++i) ids.push_back(10 * document + i);
      ids.push_back(99);
      writer.add_document(ids);
      ++document;
    }
    writer.finish();
    folder_.write("run.yaml",
                  "model: {arch: llama, num_layers: 1, hidden_size: 32, num_attention_heads: 2, vocab_size: 100}\n"
                  "train: {train_iters: 3, micro_batch_size: 2, seq_length: 4, seed: 1234, eval_iters: 0}\n"
                  "tokenizer: {tokenizer_type: NullTokenizer}\n"
                  "dataset: {kind: indexed, split: '1', data_path: " +
                      (folder_ / "d").string() + "}\n");
  }
  Outcome run(const std::string& arguments) const {
    return run_program("dataset " + (folder_ / "run.yaml").string() + " " + arguments);
  }
  Outcome train(const std::string& arguments) const {
    return run_program("train " + (folder_ / "run.yaml").string() +
                       " dist.device=cpu optimizer.lr=1e-3 run.dir=" + (folder_ / "run").string() + " " + arguments);
  }
  void expect(const std::string& arguments, int status, const std::string& output) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, status) << arguments << "\n" << outcome.output;
    EXPECT_EQ(outcome.output, output) << arguments;
  }

  const TempFolder folder_;
};

TEST_F(DatasetCommand, PrintsSamplesInMegatronsOrder) {
  expect("", 0,
         "{\"index\":0,\"tokens\":[41,42,43,44,45]}\n{\"index\":1,\"tokens\":[20,21,22,23,24]}\n"
         "{\"index\":2,\"tokens\":[52,99,0,1,2]}\n{\"index\":3,\"tokens\":[2,3,99,40,41]}\n"
         "{\"index\":4,\"tokens\":[11,99,50,51,52]}\n{\"index\":5,\"tokens\":[45,46,47,99,30]}\n"
         "{\"index\":6,\"tokens\":[24,25,99,10,11]}\n");
  expect("--samples 5:6", 0, "{\"index\":5,\"tokens\":[45,46,47,99,30]}\n");
  expect("--samples :1", 0, "{\"index\":0,\"tokens\":[41,42,43,44,45]}\n");
  expect("--samples 6:100", 0, "{\"index\":6,\"tokens\":[24,25,99,10,11]}\n");
  expect("--samples 6:6", 2, "tera: --samples 6:6: an empty range; B is the sample after the last, 6:7 is one\n");
  expect("--split valid", 2, "tera: --split valid: this split has no samples\n");
  expect("dataset.split=1,1 --split test", 2, "tera: --split test: this split has no samples\n");
}

TEST_F(DatasetCommand, PrintsWhatTheStepWouldSee) {
  expect("--samples 2:3 --fields labels,loss_mask,position_ids", 0,
         "{\"index\":2,\"labels\":[99,0,1,2],\"loss_mask\":[1,1,1,1],\"position_ids\":[0,1,2,3]}\n");
  expect("--samples 2:3 --fields loss_mask,position_ids dataset.eod_mask_loss=true dataset.reset_position_ids=true", 0,
         "{\"index\":2,\"loss_mask\":[1,0,1,1],\"position_ids\":[0,1,0,1]}\n");
  const Outcome without = run("--samples 0:1 --fields tokens,loss_mask dataset.add_extra_token_to_sequence=false");
  EXPECT_EQ(without.status, 0);
  EXPECT_TRUE(contains(without.output, "\"loss_mask\":[1,1,1,0]}")) << without.output;
  // 30 tokens are 7 samples that share one with their neighbours, and one that is short.
  const std::string prefix = (folder_ / "d").string();
  const Outcome partial =
      run("dataset.data_path=[] dataset.train_data_path=" + prefix + " dataset.valid_data_path=" + prefix +
          " dataset.full_validation=true --split valid --fields tokens,labels,loss_mask " +
          "dataset.drop_last_partial_validation_sequence=false");
  EXPECT_EQ(std::count(partial.output.begin(), partial.output.end(), '\n'), 8) << partial.output;
  EXPECT_TRUE(contains(partial.output, "\"tokens\":[30,99,-1,-1,-1],\"labels\":[99,0,0,0],\"loss_mask\":[1,0,0,0]}"))
      << partial.output;
}

// Six of seven samples fill microbatches of two; torch.randperm(6) with seed 0 begins 2 5 3.
TEST_F(DatasetCommand, PrintsTheCyclicOrder) {
  expect("dataset.dataloader_type=cyclic --samples :3", 0,
         "{\"index\":0,\"tokens\":[52,99,0,1,2]}\n{\"index\":1,\"tokens\":[45,46,47,99,30]}\n"
         "{\"index\":2,\"tokens\":[2,3,99,40,41]}\n");
}

// The message is the same for every reader.
TEST_F(DatasetCommand, TrainingNamesTheFileAndTheSampleThatIsWrong) {
  std::vector<std::int32_t> ids(6000, 7);
  ids[300] = 99;  // between the positions that are checked before the run
  IndexedWriter writer((folder_ / "long").string(), TokenType::u16);
  writer.add_document(ids);
  writer.finish();
  for (const std::string workers : {"0", "3"}) {
    const Outcome outcome = train("train.seq_length=2000 train.train_iters=1 model.vocab_size=99 dataset.data_path=" +
                                  (folder_ / "long").string() + " dataset.num_workers=" + workers);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, "sample 0: ") &&
                contains(outcome.output, "/long.bin: token 300 of sequence 0 is 99, outside the vocabulary of 99"))
        << outcome.output;
  }
}

TEST_F(DatasetCommand, TrainingFindsAnotherTokenizersDataBeforeItBegins) {
  const Outcome outcome = train("model.vocab_size=99");
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "/d.bin: token 4 of sequence 0 is 99, outside the vocabulary of 99"))
      << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "made with another tokenizer?")) << outcome.output;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
}

TEST_F(DatasetCommand, TrainingSaysWhatItWillMiss) {
  const std::string ends = "warning: the first 7 samples hold no end of a document (199)";
  const Outcome packed = train("dataset.reset_attention_mask=true");
  EXPECT_EQ(packed.status, 0) << packed.output;
  EXPECT_FALSE(contains(packed.output, "warning")) << packed.output;
  const Outcome without_ends = train("dataset.reset_attention_mask=true model.vocab_size=200");
  EXPECT_EQ(without_ends.status, 0) << without_ends.output;
  EXPECT_TRUE(contains(without_ends.output, ends)) << without_ends.output;
  const Outcome no_valid = train("train.eval_iters=1 train.eval_interval=2");
  EXPECT_EQ(no_valid.status, 0) << no_valid.output;
  EXPECT_TRUE(contains(no_valid.output,
                       "warning: there will be no evaluation, which train.eval_interval=2 asks for: "
                       "dataset.split=1 gives it nothing"))
      << no_valid.output;
}

// 30 tokens in documents of up to 9.
TEST_F(DatasetCommand, TrainingSaysWhenSequencesAreLongerThanTheData) {
  const auto warned = [&](const std::string& length) {
    const Outcome outcome = train("train.train_iters=1 train.seq_length=" + length);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    const std::size_t at = outcome.output.find("warning: ");
    return at == std::string::npos ? "" : outcome.output.substr(at, outcome.output.find('\n', at) - at);
  };
  EXPECT_EQ(warned("9"), "");
  EXPECT_TRUE(contains(warned("10"), "train.seq_length=10 is longer than the longest document, 9 tokens"));
  EXPECT_TRUE(contains(warned("29"), "train.seq_length=29 is longer than the longest document, 9 tokens"));
  EXPECT_EQ(warned("29 dataset.reset_attention_mask=true"), "") << "several documents are meant to share a sequence";
  EXPECT_TRUE(contains(warned("30"), "a sample of train.seq_length=30 is longer than all the data, 30 tokens"));
}

// After the last step, whatever the interval, where there is something to evaluate on.
TEST_F(DatasetCommand, TheEndOfARunIsEvaluated) {
  const auto evaluated = [&](const std::string& interval) {
    const Outcome outcome = train("dataset.split=1,1 train.eval_iters=1 train.train_iters=5 " + interval);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    std::size_t times = 0;
    for (std::size_t at = 0; (at = outcome.output.find("eval at step ", at)) != std::string::npos; ++at) ++times;
    EXPECT_EQ(contains(outcome.output, "eval at step 5 "), times > 0) << outcome.output;
    return times;
  };
  EXPECT_EQ(evaluated("train.eval_interval=2"), 3u);
  EXPECT_EQ(evaluated("train.eval_interval=7"), 1u);
  EXPECT_EQ(evaluated("train.eval_interval=0"), 0u);
  // Too little for an evaluation is wrong where one was asked for in the middle of the run.
  EXPECT_EQ(train("dataset.split=1,1e-9 train.eval_iters=1 train.eval_interval=1").status, 2);
  const Outcome outcome = train("dataset.split=1,1e-9 train.eval_iters=1");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "warning: there will be no evaluation") &&
              contains(outcome.output, "has no tokens"))
      << outcome.output;
}

TEST_F(DatasetCommand, PrefixesAreFound) {
  const std::string first = "{\"index\":0,\"tokens\":[41,42,43,44,45]}\n", prefix = (folder_ / "d").string();
  for (const char* end : {"", ".bin", ".idx"}) expect("--samples :1 dataset.data_path=" + prefix + end, 0, first);
  for (const char* end : {".bin", ".idx"})
    std::filesystem::copy(prefix + end, (folder_ / "c_text_document").string() + end);
  for (const char* end : {"", ".bin"})
    expect("dataset.data_path=" + (folder_ / "c").string() + end, 2,
           "tera: " + (folder_ / "c.idx").string() + ": No such file or directory; there is " +
               (folder_ / "c_text_document").string() + "\n");
  const std::string text = (folder_ / "text.jsonl").string();
  std::ofstream(text) << "{\"text\": \"x\"}\n";
  expect("dataset.data_path=" + text, 2,
         "tera: " + text + ": text, not a dataset of tokens; `tera preprocess --input " + text +
             " --output-prefix P` makes one, P_text_document\n");
}

TEST_F(DatasetCommand, ReportsMistakes) {
  for (const auto& [arguments, words] : std::vector<std::pair<std::string, std::string>>{
           {"--samples 3", "--samples 3: must be A:B"},
           {"--samples -1:2", "must be A:B"},
           {"--samples 5:2", "--samples 5:2: the first sample comes after the last"},
           {"--samples 7:", "--samples 7: is beyond the end: the train split has 7 samples"},
           {"--samples 8:9", "--samples 8:9 is beyond the end: the train split has 7 samples"},
           {"--samples a:b", "must be A:B"},
           {"--split x", "--split x: there are train, valid, test"},
           {"--fields tokens,x", "--fields x: there are tokens, labels, loss_mask, position_ids"},
           {"model.vocab_size=99", "outside the vocabulary of 99"},
           {"dataset.data_path=[]", "dataset.data_path is not given"},
           {"dataset.data_path=/no/such", "/no/such.idx: No such file"},
           {"dataset.kind=mock dataset.data_path=[]", "mock data has no end"},
           {"dataset.split=1,1e-9 --split valid train.eval_iters=1", "has no tokens"},
           {"> /dev/full", "standard output"}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_TRUE(contains(outcome.output, words)) << arguments << "\n" << outcome.output;
  }
}

}  // namespace
}  // namespace tera::test
