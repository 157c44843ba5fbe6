// tera preprocess, tera dataset merge and tera inspect as users start them. The expected files are those of
// tools/reference/check_preprocess.py, which shares nothing with this program.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tera/data/indexed/indexed_dataset.h"
#include "tera/data/indexed/indexed_writer.h"
#include "tests/end_to_end/program.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

const std::filesystem::path golden = source_path("tests/golden/data/preprocess");
const std::string bytes_options = " --tokenizer-type ByteTokenizer --json-keys text title";

class Preprocess : public testing::Test {
 protected:
  std::string prefix() const { return (folder_ / "out").string(); }
  Outcome run(const std::string& input, const std::string& options) const {
    return run_program("preprocess --input " + input + " --output-prefix " + prefix() + options);
  }
  // Runs the command, and compares both keys with the golden files of a name.
  void expect_same(const std::string& input, const std::string& options, const std::string& name) const {
    const Outcome outcome = run(input, options);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    for (const std::string key : {"text", "title"})
      for (const std::string end : {".bin", ".idx"})
        EXPECT_TRUE(slurp(folder_ / ("out_" + key + "_document" + end)) ==
                    slurp(golden / (name + "_" + key + "_document" + end)))
            << input << options << " " << key << end;
  }
  std::string source(const char* name) const { return (golden / name).string(); }

  const TempFolder folder_;
};

TEST_F(Preprocess, WritesWhatMegatronWouldWhateverTheWorkers) {
  for (const std::string workers : {" --workers 1", " --workers 2", " --workers 4"}) {
    expect_same(source("bytes.jsonl"), bytes_options + workers, "bytes_plain");
    expect_same(source("bytes.jsonl"), bytes_options + workers + " --append-eod", "bytes_eod");
  }
}

TEST_F(Preprocess, ChoosesTheNumberTypeByTheVocabulary) {
  const std::string numbers = " --tokenizer-type NullTokenizer --json-keys text title --vocab-size ";
  expect_same(source("numbers16.jsonl"), numbers + "65499", "numbers16_plain");
  expect_same(source("numbers16.jsonl"), numbers + "65499 --append-eod", "numbers16_eod");
  expect_same(source("numbers32.jsonl"), numbers + "65500", "numbers32_plain");
  expect_same(source("numbers32.jsonl"), numbers + "65500 --append-eod", "numbers32_eod");
}

TEST_F(Preprocess, ReadsCompressedFilesPatternsAndStandardInput) {
  expect_same(source("bytes.jsonl.gz"), bytes_options, "bytes_plain");
  expect_same(source("bytes.jsonl.zst"), bytes_options, "bytes_plain");
  for (const char* name : {"bytes.jsonl", "bytes.jsonl.gz", "bytes.jsonl.zst"})
    expect_same("- < " + source(name), bytes_options, "bytes_plain");
  // Two halves are read in the order of their names. The first file's last line may lack its newline.
  const std::string content = slurp(golden / "bytes.jsonl");
  const std::size_t cut = content.find('\n', content.size() / 2);
  folder_.write("part-10.jsonl", content.substr(cut + 1));
  folder_.write("part-09.jsonl", content.substr(0, cut));
  expect_same("'" + (folder_ / "part-*.jsonl").string() + "'", bytes_options, "bytes_plain");
  expect_same((folder_ / "part-09.jsonl").string() + " - < " + (folder_ / "part-10.jsonl").string(), bytes_options,
              "bytes_plain");
}

TEST_F(Preprocess, ABadLineIsOneLineOfErrorAndNoOutput) {
  const std::string input = folder_.write("in.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\n{\"text\":\"c\"}\n").string();
  const Outcome outcome = run(input, " --tokenizer-type ByteTokenizer");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.output,
            "tera: " + input + ":2: no JSON at byte 11: the string that begins at byte 9 does not end\n");
  EXPECT_EQ(folder_.files(), 1u);
  const Outcome skipping = run(input, " --tokenizer-type ByteTokenizer --skip-bad-lines");
  EXPECT_EQ(skipping.status, 0);
  EXPECT_TRUE(contains(skipping.output, "skipped: " + input + ":2: ")) << skipping.output;
  EXPECT_TRUE(contains(skipping.output, "1 lines skipped")) << skipping.output;
  EXPECT_EQ(IndexedDataset(prefix() + "_text_document").documents(), 2);
}

TEST_F(Preprocess, MistakesAreReported) {
  const std::string input = folder_.write("in.jsonl", "{\"text\":\"a\"}\n").string();
  const auto expect_problem = [&](const Outcome& outcome, const std::string& words) {
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, words)) << outcome.output;
    EXPECT_EQ(folder_.files(), 1u);
  };
  expect_problem(run(input, ""), "--tokenizer-type");
  expect_problem(run(input, " --tokenizer-type ByteTokenizre"), "ByteTokenizre");
  expect_problem(run("none.jsonl", " --tokenizer-type ByteTokenizer"), "none.jsonl: No such file");
  expect_problem(run(input, " --tokenizer-type ByteTokenizer --json-keys body"), "in.jsonl:1: the key \"body\"");
  expect_problem(run("- < /dev/null", " --tokenizer-type ByteTokenizer"), "standard input: nothing to read");
  expect_problem(run("- < " + source("bytes_plain_text_document.idx"), " --tokenizer-type ByteTokenizer"),
                 "standard input:1: ");
  EXPECT_EQ(run(input, " --tokenizer-type ByteTokenizer > /dev/full").status, 2);
}

// More than `ulimit -f` allows (in blocks of 512 or 1024 bytes) is a failed write, not the end by a signal.
TEST_F(Preprocess, AFileThatMayNotGrowIsReported) {
  const std::string input = folder_.write("in.jsonl", "{\"text\":\"" + std::string(100'000, 'a') + "\"}\n").string();
  const Outcome outcome = run_shell("ulimit -f 8; \"" + std::string(paths::program) + "\" preprocess --input " + input +
                                    " --output-prefix " + prefix() + " --tokenizer-type ByteTokenizer");
  EXPECT_EQ(outcome.status, 2) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "out_text_document.bin: File too large")) << outcome.output;
  EXPECT_EQ(folder_.files(), 1u);
}

TEST_F(Preprocess, InterruptedItLeavesNothing) {
  const std::string command = "preprocess --input - --output-prefix " + prefix() + " --tokenizer-type ByteTokenizer";
  for (const auto& [signal, status] : {std::pair<std::string, int>{"INT", 130}, {"TERM", 143}, {"HUP", 129}}) {
    // The input is some lines, then nothing: the command waits for more when the signal comes.
    const Outcome outcome =
        run_shell("mkfifo " + prefix() + ".pipe; (cat " + source("bytes.jsonl") + "; sleep 20) > " + prefix() +
                  ".pipe & writer=$!; \"" + std::string(paths::program) + "\" " + command + " < " + prefix() +
                  ".pipe & program=$!; sleep 0.5; ls " + folder_.path().string() + "; kill -" + signal +
                  " $program; wait $program; echo status $?; kill $writer; rm " + prefix() + ".pipe");
    EXPECT_TRUE(contains(outcome.output, "out_text_document.bin.tmp")) << outcome.output;  // it was at work
    EXPECT_TRUE(contains(outcome.output, "tera: interrupted after")) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, "status " + std::to_string(status))) << outcome.output;
    EXPECT_EQ(folder_.files(), 0u);
  }
}

TEST_F(Preprocess, MergedPartsEqualTheWhole) {
  const std::string content = slurp(golden / "bytes.jsonl");
  const std::size_t cut = content.find('\n', content.size() / 2) + 1;
  const auto part = [&](const char* name, const std::string& text) {
    const std::string input = folder_.write(std::string(name) + ".jsonl", text).string();
    const std::string output = (folder_ / name).string();
    EXPECT_EQ(run_program("preprocess --input " + input + " --output-prefix " + output + bytes_options).status, 0);
    return output + "_text_document";
  };
  const std::string a = part("a", content.substr(0, cut)), b = part("b", content.substr(cut));
  for (const std::string end : {"", ".bin", ".idx"}) {
    const Outcome outcome = run_program("dataset merge --input " + a + " " + b + " --output-prefix " + prefix() + end);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    for (const std::string file : {".bin", ".idx"}) {
      EXPECT_TRUE(slurp(prefix() + file) == slurp(golden / ("bytes_plain_text_document" + file)));
      std::filesystem::remove(prefix() + file);
    }
  }
  const std::string wide = (golden / "numbers32_plain_text_document").string();
  const Outcome mixed = run_program("dataset merge --input " + a + " " + wide + " --output-prefix " + prefix() + "2");
  EXPECT_EQ(mixed.status, 2);
  EXPECT_TRUE(contains(mixed.output, "holds uint16 and " + wide + " holds int32")) << mixed.output;
  EXPECT_FALSE(std::filesystem::exists(prefix() + "2.bin"));
  EXPECT_EQ(run_program("dataset").status, 2);
  EXPECT_EQ(run_program("dataset merge --input " + a).status, 2);
}

// Numbers that are no ids of any tokenizer; without a run there is no key of a config to name.
TEST(Inspect, ReportsIdsThatAreTooLarge) {
  const TempFolder folder;
  const std::string prefix = (folder / "wide").string();
  IndexedWriter writer(prefix, TokenType::i64);
  writer.add_document(std::vector<std::int32_t>{1, 2});
  writer.finish();
  EXPECT_EQ(run_program("inspect " + prefix).status, 0);
  std::fstream(prefix + ".bin", std::ios::in | std::ios::out | std::ios::binary).write("\1\0\0\0\1\0\0\0", 8);
  const Outcome outcome = run_program("inspect " + prefix);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.output, "tera: " + prefix + ".bin: a token id is 4294967297; none may be above 2147483647\n");
}

TEST(Inspect, DescribesADataset) {
  const std::string prefix = (golden / "bytes_eod_title_document").string();
  const Outcome table = run_program("inspect " + prefix + " --tokenizer-type ByteTokenizer");
  ASSERT_EQ(table.status, 0) << table.output;
  for (const char* words : {"dataset", "documents", "uint16", "first_text", "█"})
    EXPECT_TRUE(contains(table.output, words)) << words << "\n" << table.output;
  const IndexedDataset data(prefix);
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < data.sequences(); ++i) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(data.lengths()[static_cast<std::size_t>(i)]));
    data.read(i, 0, 512, ids);
    largest = std::max(largest, *std::ranges::max_element(ids));
  }
  for (const char* end : {"", ".bin", ".idx"}) {
    const Outcome outcome = run_program("inspect --json " + prefix + end);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const auto found = nlohmann::json::parse(outcome.output);
    EXPECT_EQ(found["kind"], "dataset");
    EXPECT_EQ(found["documents"], data.documents());
    EXPECT_EQ(found["tokens"], data.tokens());
    EXPECT_EQ(found["dtype"], "uint16");
    EXPECT_EQ(found["largest_id"], largest);
    std::int64_t documents = 0;
    for (const auto& bin : found["lengths"]) documents += bin["documents"].get<std::int64_t>();
    EXPECT_EQ(documents, data.documents());
  }
}

TEST(Inspect, SaysWhatIsWrong) {
  const TempFolder folder;
  const auto expect_problem = [](const std::string& arguments, const std::string& words) {
    const Outcome outcome = run_program("inspect " + arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, words)) << outcome.output;
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
  };
  expect_problem((folder / "none").string(), "no such file or folder");
  expect_problem(folder.path().string(), "no checkpoint");
  expect_problem(folder.write("a.txt", "x").string(), "not known");
  const std::string index = slurp(golden / "bytes_eod_title_document.idx");
  folder.write("cut.bin", slurp(golden / "bytes_eod_title_document.bin"));
  expect_problem(folder.write("cut.idx", index.substr(0, index.size() - 8)).string(), "cut.idx: document count");
  expect_problem((golden / "numbers16_plain_text_document").string() + " --tokenizer-type ByteTokenizer",
                 "outside the vocabulary of 512");
  expect_problem((golden / "bytes_eod").string(), "bytes_eod_text_document, ");
  // The bad sample is far after those that are shown.
  std::vector<std::int32_t> ids(1000, 7);
  ids.back() = 600;
  IndexedWriter writer((folder / "late").string(), TokenType::u16);
  writer.add_document(ids);
  writer.finish();
  expect_problem((folder / "late").string() + " --tokenizer-type ByteTokenizer",
                 "late.bin: the largest token id is 600, outside the vocabulary of 512");
  EXPECT_EQ(run_program("inspect " + (folder / "late").string()).status, 0);
  expect_problem(folder.write("x.safetensors", "junk").string(), "x.safetensors");
  expect_problem(folder.write("deep.json", std::string(100'000, '[')).string(), "deep.json");
}

TEST(Inspect, DescribesTensors) {
  const Outcome outcome = run_program("inspect --json " + source_path("tests/golden/data/gpt2.safetensors"));
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto found = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(found["kind"], "tensors");
  EXPECT_GT(found["parameters"], 1000);
}

TEST(Inspect, DescribesHuggingFaceFoldersAndTokenizers) {
  const TempFolder folder;
  folder.write("hf/config.json", R"({"model_type":"gpt2","vocab_size":61,"hidden_size":16,"other":[1]})");
  std::filesystem::copy(source_path("tests/golden/data/gpt2.safetensors"), folder / "hf/model.safetensors");
  std::filesystem::copy(source_path("fuzz/corpus/tokenizer_json/byte_level"), folder / "hf/tokenizer.json");
  const auto inspect = [&](const std::string& name, int status = 0) {
    const Outcome outcome = run_program("inspect --json " + (folder / name).string());
    EXPECT_EQ(outcome.status, status) << outcome.output;
    return nlohmann::json::parse(outcome.output.substr(0, outcome.output.find('\n')));
  };
  const auto found = inspect("hf", 2);  // a problem, with the reason: its config does not suit its tensors
  EXPECT_FALSE(found["problem"].empty());
  EXPECT_EQ(found["kind"], "Hugging Face folder");
  EXPECT_EQ(found["config.hidden_size"], 16);
  EXPECT_EQ(found["tensors"], 60);
  EXPECT_EQ(found["tokenizer_type"], "HuggingFaceTokenizer");
  const auto tokenizer = inspect("hf/tokenizer.json");
  EXPECT_EQ(tokenizer["kind"], "tokenizer");
  EXPECT_EQ(tokenizer["vocab_size"], found["vocab_size"]);
}

TEST(Inspect, DescribesACheckpoint) {
  const TempFolder folder;
  const std::string save = (folder / "saved").string();
  const Outcome trained = run_program("train " + source_path("configs/tests/tiny.yaml") +
                                      " train.train_iters=3 train.eval_iters=0 run.dir=" + (folder / "run").string() +
                                      " checkpoint.save=" + save);
  ASSERT_EQ(trained.status, 0) << trained.output;
  for (const std::string& path : {save, save + "/step_00000003"}) {
    const Outcome outcome = run_program("inspect --json " + path);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const auto found = nlohmann::json::parse(outcome.output);
    EXPECT_EQ(found["kind"], "checkpoint");
    EXPECT_EQ(found["step"], 3);
    EXPECT_EQ(found["arch"], "llama");
    EXPECT_GT(found["parameters"], 1000);
    EXPECT_EQ(found["moments"], "f32, f32");
  }
  EXPECT_TRUE(contains(run_program("inspect --verify " + save).output, "good"));
  const std::string file = save + "/step_00000003/rank_00000.safetensors";
  const auto size = std::filesystem::file_size(file);
  std::ofstream(file, std::ios::in | std::ios::binary).seekp(static_cast<std::streamoff>(size) - 1).put('\x7f');
  EXPECT_EQ(run_program("inspect " + save).status, 0);
  EXPECT_EQ(run_program("inspect --verify " + save).status, 2) << "one byte is another";
  std::filesystem::resize_file(file, 100);
  EXPECT_EQ(run_program("inspect " + save).status, 2);
}

TEST(Inspect, ReportsWhatMomentsAreKeptIn) {
  const TempFolder folder;
  const auto inspect = [&](const std::string& name, const std::string& arguments) {
    const std::string save = (folder / name).string();
    const Outcome trained = run_program("train " + source_path("configs/tests/tiny.yaml") +
                                        " train.train_iters=3 train.eval_iters=0 run.dir=" + save +
                                        ".run checkpoint.save=" + save + arguments);
    EXPECT_EQ(trained.status, 0) << trained.output;
    return run_program("inspect " + save).output;
  };
  const std::string second = " optimizer.adam_beta2=0.95 optimizer.exp_avg_sq_dtype=bf16";
  EXPECT_TRUE(contains(inspect("mixed", second), "\nmoments     f32, bf16\n"));
  EXPECT_TRUE(contains(inspect("both", second + " optimizer.exp_avg_dtype=bf16"), "\nmoments     bf16, bf16\n"));
  EXPECT_FALSE(contains(inspect("sgd", " optimizer.optimizer=sgd"), "moments"));
}

}  // namespace
}  // namespace tera::test
