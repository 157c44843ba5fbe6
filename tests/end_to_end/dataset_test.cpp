// tera dataset: the samples of a run, as other programs read them.

#include <gtest/gtest.h>

#include <algorithm>

#include "tera/data/indexed_writer.h"
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
  expect("--samples 7:", 0, "");
  expect("--split valid", 0, "");
  expect("dataset.split=1,1 --split test", 0, "");
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

// Of seven samples, six fill microbatches of two; torch.randperm(6) with seed 0 begins 2 5 3.
TEST_F(DatasetCommand, PrintsTheCyclicOrder) {
  expect("dataset.dataloader_type=cyclic --samples :3", 0,
         "{\"index\":0,\"tokens\":[52,99,0,1,2]}\n{\"index\":1,\"tokens\":[45,46,47,99,30]}\n"
         "{\"index\":2,\"tokens\":[2,3,99,40,41]}\n");
}

// Whoever reads it.
TEST_F(DatasetCommand, TrainingNamesTheFileAndTheSampleThatIsWrong) {
  for (const std::string workers : {"0", "3"}) {
    const Outcome outcome = run_program("train " + (folder_ / "run.yaml").string() +
                                        " dist.device=cpu optimizer.lr=1e-3 run.dir=" + (folder_ / "run").string() +
                                        " model.vocab_size=99 dataset.num_workers=" + workers);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, "sample 2: ") && contains(outcome.output, "/d.bin: token ")) << outcome.output;
  }
}

TEST_F(DatasetCommand, TellsMistakes) {
  for (const auto& [arguments, words] : std::vector<std::pair<std::string, std::string>>{
           {"--samples 3", "--samples 3: must be A:B"},
           {"--samples -1:2", "must be A:B"},
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
