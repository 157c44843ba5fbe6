// A resumed run reads on: the samples, masks and batches after the checkpoint are those of the uninterrupted run, for
// every kind of data and any number of threads that read it.

#include "tera/data/indexed/indexed_writer.h"
#include "tests/end_to_end/checkpoint_runs.h"

namespace tera::test {
namespace {

class CheckpointData : public CheckpointRuns {
 protected:
  void SetUp() override {
    write_documents("one", 1);
    write_documents("two", 3);
    std::string lines;
    for (int i = 0; i < 30; ++i)
      lines +=
          fmt::format(R"({{"messages":[{{"role":"user","content":"{0}"}},{{"role":"assistant","content":"{0}"}}]}})"
                      "\n",
                      std::string(static_cast<std::size_t>(1 + i % 9), static_cast<char>('a' + i % 26)));
    folder_.write("chat.jsonl", lines);
  }
  void write_documents(const char* name, std::int32_t factor) const {
    IndexedWriter writer(path(name), TokenType::u16);
    for (std::int32_t document = 0; document < 24; ++document) {
      std::vector<std::int32_t> ids;
      for (std::int32_t i = 0; i < 9 + document % 5; ++i) ids.push_back((document * 7 + i * factor) % 60);
      ids.push_back(60);
      writer.add_document(ids);
    }
    writer.finish();
  }
  std::string indexed(const std::string& paths) const {
    return "dataset.kind=indexed tokenizer.tokenizer_type=NullTokenizer dataset.split='1' dataset.data_path=" + paths +
           " ";
  }

  // Resumes from the middle of a run to its end, with other numbers of threads that read.
  void expect_reads_on(const std::string& data, const std::string& layout = "", int step = 7,
                       const std::string& length = "train.train_iters=20 ") {
    SCOPED_TRACE(data + layout);
    const std::string id = std::to_string(++runs_), arguments = data + " train.eval_iters=0 " + length + layout;
    const std::string uninterrupted = id + "whole", saved = path(uninterrupted + "-saved");
    expect_trained(
        "tiny", uninterrupted,
        fmt::format("{} dataset.num_workers=3 checkpoint.save={} checkpoint.save_interval={}", arguments, saved, step));
    for (const int workers : {0, 1, 4}) {
      const std::string parts = fmt::format("{}parts{}", id, workers);
      expect_trained("tiny", parts,
                     fmt::format("{} dataset.num_workers={} checkpoint.load={}/step_{:08d} checkpoint.save={}",
                                 arguments, workers, saved, step, path(parts + "-saved")));
      for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens"}) {
        std::vector<std::string> rest = column(folder_ / uninterrupted, key);
        ASSERT_GT(rest.size(), static_cast<std::size_t>(step) + 5);
        rest.erase(rest.begin(), rest.begin() + step);
        EXPECT_EQ(column(folder_ / parts, key), rest) << key << " with " << workers;
      }
      EXPECT_TRUE(tensors(parts + "-saved") == tensors(uninterrupted + "-saved")) << workers;
    }
  }

  int runs_ = 0;
};

const std::string dp2 = " --ranks 2";

// 20 steps are several epochs of either.
TEST_F(CheckpointData, IndexedAndBlended) {
  expect_reads_on(indexed(path("one")) + "dataset.eod_mask_loss=true dataset.reset_position_ids=true");
  expect_reads_on(indexed(fmt::format("[3,{},1,{}]", path("one"), path("two"))), dp2);
}

// The samples requested reach to the end of the run: 16 samples were consumed, in steps of another size than now.
TEST_F(CheckpointData, SmallerBatchesDoNotReadFromTheBeginning) {
  const std::string once = indexed(fmt::format("[{},{}]", path("one"), path("two"))) + "train.eval_iters=0 ";
  expect_trained("tiny", "a",
                 once + "train.train_iters=4 train.global_batch_size=8 checkpoint.save_interval=2 checkpoint.save=" +
                     path("saved"));
  const std::string on = once + "train.global_batch_size=2 checkpoint.load=" + path("saved/step_00000002");
  expect_refused(train("tiny", "b", on + " train.train_iters=16"),
                 "the run reads 44 samples, and the datasets, which without weights are read once, have 34");
  expect_trained("tiny", "c", on + " train.train_iters=11");
  EXPECT_EQ(column(folder_ / "c", "tokens").back(), std::to_string(34 * 16));
}

TEST_F(CheckpointData, CyclicSampler) {
  const std::string cyclic = indexed(path("one")) + "dataset.dataloader_type=cyclic dataset.data_sharding=";
  expect_reads_on(cyclic + "true");
  expect_reads_on(cyclic + "true", dp2);
  expect_reads_on(cyclic + "false", dp2);
}

TEST_F(CheckpointData, BatchesThatGrow) {
  const std::string growing =
      "train.micro_batch_size=1 \"train.rampup_batch_size=[1,1,24]\" scheduler.lr_warmup_iters=0 "
      "scheduler.lr_warmup_samples=9 scheduler.lr_decay_iters=0 scheduler.lr_decay_samples=60 ";
  const std::string length = "train.train_iters=0 train.train_samples=60 ";
  expect_reads_on(growing + indexed(path("two")), "", 10, length);
  expect_reads_on(growing + indexed(path("two")) + "dataset.dataloader_type=cyclic", "", 10, length);
}

TEST_F(CheckpointData, Conversations) {
  const std::string chat =
      "model.vocab_size=512 dataset.kind=sft dataset.split='1' 'dataset.chat_format.user=U{content}.' "
      "'dataset.chat_format.assistant=A{content}.' dataset.data_path=" +
      path("chat.jsonl") + " ";
  expect_reads_on(chat);
  expect_reads_on(chat + "dataset.dataloader_type=cyclic", dp2);
}

}  // namespace
}  // namespace tera::test
