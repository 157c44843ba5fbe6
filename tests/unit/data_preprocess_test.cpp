// From lines to datasets: order, bad lines, giving up, merging.

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "tera/base/error.h"
#include "tera/data/indexed/indexed_dataset.h"
#include "tera/data/indexed/indexed_writer.h"
#include "tera/data/indexed/merge.h"
#include "tera/data/indexed/spool.h"
#include "tera/data/preprocess/ordered_pipeline.h"
#include "tera/data/preprocess/preprocess.h"
#include "tera/tokenizer/plain_tokenizers.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using namespace std::chrono_literals;
using Ids = std::vector<std::int32_t>;

PreprocessOptions options_for(const TempFolder& folder, std::vector<std::string> inputs) {
  PreprocessOptions options{.inputs = std::move(inputs), .output_prefix = (folder / "out").string()};
  options.workers = 2;
  return options;
}

std::vector<Ids> documents_of(const TempFolder& folder, const std::string& key = "text") {
  const IndexedDataset data((folder / ("out_" + key + "_document")).string());
  std::vector<Ids> documents;
  for (std::int64_t i = 0; i < data.sequences(); ++i) {
    Ids ids(static_cast<std::size_t>(data.lengths()[static_cast<std::size_t>(i)]));
    data.read(i, 0, 1 << 30, ids);
    documents.push_back(ids);
  }
  return documents;
}

TEST(OrderedPipeline, KeepsOrderWhateverTheWorkersDo) {
  for (const int workers : {1, 3}) {
    int made = 0;
    std::atomic<int> in_flight = 0, max_in_flight = 0;
    OrderedPipeline<int> pipeline({.workers = workers, .jobs = 5, .bytes = 1000},
                                  {[&](int& job, const std::atomic<bool>&) {
                                     job = made++;
                                     max_in_flight = std::max<int>(max_in_flight, ++in_flight);
                                     return job < 500;
                                   },
                                   [](int& job, int) {
                                     if (job % 7 == 0) std::this_thread::sleep_for(1ms);
                                     job *= 2;
                                   },
                                   [](const int&) { return std::uint64_t{300}; }});
    int expected = 0;
    using State = OrderedPipeline<int>::State;
    for (State state; (state = pipeline.next(1ms)) != State::ended;) {
      if (state == State::waiting) continue;
      ASSERT_EQ(pipeline.job(), 2 * expected++);
      --in_flight;
      pipeline.release();
    }
    EXPECT_EQ(expected, 500);
    EXPECT_LE(max_in_flight, 5);  // four times 300 bytes are over the limit, and one more job was being made
  }
}

TEST(OrderedPipeline, FaultsComeWhenItIsTheirTurn) {
  const auto run = [](int bad_work, int bad_make) {
    int made = 0, taken = 0;
    OrderedPipeline<int> pipeline({.workers = 3, .jobs = 8}, {[&](int& job, const std::atomic<bool>&) {
                                                                if (made == bad_make) fail_user("make {}", made);
                                                                job = made++;
                                                                return true;
                                                              },
                                                              [&](int& job, int) {
                                                                if (job >= bad_work) fail_user("work {}", job);
                                                              },
                                                              [](const int&) { return std::uint64_t{1}; }});
    const std::string message = message_of<UserError>([&] {
      while (true)
        if (pipeline.next(10ms) == OrderedPipeline<int>::State::ready) ++taken, pipeline.release();
    });
    return message + " after " + std::to_string(taken);
  };
  EXPECT_EQ(run(20, 40), "work 20 after 20");
  EXPECT_EQ(run(100, 40), "make 40 after 40");
  EXPECT_EQ(run(40, 40), "make 40 after 40");
}

TEST(Spool, GivesBackWhatWasPut) {
  const TempFolder folder;
  for (const std::size_t memory : {std::size_t{8}, std::size_t{1000}, std::size_t{100'000'000}}) {
    Spool spool(folder.path(), memory);
    std::vector<std::int64_t> numbers, found;
    for (std::int64_t i = 0; i < 300'000; ++i) {
      spool.put(std::as_bytes(std::span(&i, 1)));
      numbers.push_back(i);
    }
    for (int twice = 0; twice < 2; ++twice) {
      found.clear();
      spool.replay([&](std::span<const std::byte> piece) {
        const PackedArray<std::int64_t> part(piece);
        ASSERT_EQ(piece.size() % 8, 0u);
        for (std::size_t i = 0; i < part.size(); ++i) found.push_back(part[i]);
      });
      EXPECT_EQ(found, numbers);
    }
    EXPECT_EQ(spool.size(), 2'400'000u);
    EXPECT_EQ(folder.files(), 0u);  // it has no name
  }
}

TEST(Preprocess, DocumentsAreInTheOrderOfLines) {
  const TempFolder folder;
  std::mt19937 random(1);
  std::vector<Ids> expected;
  std::vector<std::string> inputs;
  for (int file = 0; file < 3; ++file) {
    std::string text;
    for (int i = 0; i < 700; ++i) {
      Ids ids(random() % 50);
      std::string words;
      for (std::int32_t& id : ids) words += std::to_string(id = static_cast<std::int32_t>(random() % 1000)) + " ";
      text += "{\"text\": \"" + words + "\"}\n";
      if (!ids.empty()) ids.push_back(999), expected.push_back(ids);
    }
    inputs.push_back(folder.write("in" + std::to_string(file), text).string());
  }
  std::string bin, idx;
  for (const int workers : {1, 2, 5}) {
    for (const std::size_t block : {100, 5'000, 1'000'000}) {
      PreprocessOptions options = options_for(folder, inputs);
      options.append_eod = true;
      options.workers = workers;
      options.block_bytes = block;
      const PreprocessReport report = preprocess(options, NullTokenizer(1000));
      EXPECT_EQ(report.progress.lines, 2100);
      EXPECT_EQ(report.outputs[0].documents, 2100);
      EXPECT_EQ(report.outputs[0].sequences, std::ssize(expected));
      EXPECT_EQ(report.progress.stored_bytes, report.progress.stored_total);
      EXPECT_EQ(report.progress.stored_bytes, report.progress.text_bytes);
      ASSERT_EQ(documents_of(folder), expected);
      const std::string new_bin = slurp(folder / "out_text_document.bin"),
                        new_idx = slurp(folder / "out_text_document.idx");
      EXPECT_TRUE(bin.empty() || (new_bin == bin && new_idx == idx));
      bin = new_bin, idx = new_idx;
    }
  }
  EXPECT_EQ(folder.files(), 5u);
}

TEST(Preprocess, ABadLineStopsWithFileAndLine) {
  const TempFolder folder;
  const std::string good = "{\"text\":\"1 2\"}\n";
  std::string many;
  for (int i = 0; i < 100; ++i) many += good;
  const std::string first = folder.write("first", many).string();
  const std::pair<std::string, const char*> cases[] = {
      {"", "blank"},
      {"[]", "no object"},
      {"{}", "is missing"},
      {"{\"text\":1}", "is a number"},
      {"{", "no JSON"},
      {"{\"text\":\"\xff\"}", "not UTF-8: byte 10 is 0xff"},
      {"{\"text\":\"1 x\"}", "the null tokenizer reads ids"},
      {"{\"text\":\"" + std::string(300, '1') + "\"}", "longer than 200 bytes"},
  };
  for (const auto& [line, words] : cases) {
    const std::string second = folder.write("second", many + line + "\r\n" + good + "also bad\n" + many).string();
    for (const std::size_t block : {50, 500, 1'000'000}) {
      PreprocessOptions options = options_for(folder, {first, second});
      options.workers = 3;
      options.block_bytes = block;
      options.max_line_bytes = 200;
      const std::string message = message_of<UserError>([&] { preprocess(options, NullTokenizer(1000)); });
      EXPECT_TRUE(contains(message, second + ":101: ") && contains(message, words)) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos);
      EXPECT_EQ(folder.files(), 2u);

      options.skip_bad_lines = true;
      std::vector<std::string> reported;
      const PreprocessReport report = preprocess(options, NullTokenizer(1000),
                                                 {.skipped = [&](const std::string& why) { reported.push_back(why); }});
      EXPECT_EQ(report.progress.skipped, 2);
      EXPECT_EQ(report.progress.lines, 303);
      ASSERT_EQ(reported.size(), 2u);
      EXPECT_EQ(reported[0], message);
      EXPECT_TRUE(contains(reported[1], second + ":103: the line is no object")) << reported[1];
      EXPECT_EQ(documents_of(folder), std::vector<Ids>(301, Ids{1, 2}));
      std::filesystem::remove(folder / "out_text_document.bin");
      std::filesystem::remove(folder / "out_text_document.idx");
    }
  }
}

TEST(Preprocess, AKeyThatIsMissingLeavesNothingOfTheOthers) {
  const TempFolder folder;
  PreprocessOptions options = options_for(
      folder,
      {folder.write("in", "{\"a\":\"1\",\"b\":\"2 3\"}\n{\"a\":\"4\"}\n{\"b\":[\"5\",\"6 7\"],\"a\":\"\"}").string()});
  options.keys = {"b", "a"};
  EXPECT_TRUE(contains(message_of<UserError>([&] { preprocess(options, NullTokenizer(100)); }), "in:2: the key \"b\""));
  options.skip_bad_lines = true;
  preprocess(options, NullTokenizer(100));
  EXPECT_EQ(documents_of(folder, "a"), (std::vector<Ids>{{1}}));
  EXPECT_EQ(documents_of(folder, "b"), (std::vector<Ids>{{2, 3}, {5}, {6, 7}}));
  const IndexedDataset a((folder / "out_a_document").string());
  EXPECT_EQ(a.documents(), 2);  // the empty one has no sequence
}

TEST(Preprocess, MistakesAreReportedBeforeAnythingIsRead) {
  const TempFolder folder;
  const std::string input = folder.write("in", "{\"text\":\"1\"}").string();
  const auto problem = [&](const std::function<void(PreprocessOptions&)>& spoil) {
    PreprocessOptions options = options_for(folder, {input});
    spoil(options);
    const std::string message = message_of<UserError>([&] { preprocess(options, NullTokenizer(100)); });
    EXPECT_EQ(folder.files(), 1u);
    return message;
  };
  EXPECT_TRUE(contains(problem([](auto& o) { o.inputs.push_back("none.jsonl"); }), "none.jsonl: No such file"));
  EXPECT_TRUE(contains(problem([](auto& o) { o.inputs = {"none*"}; }), "no file matches none* (--input)"));
  EXPECT_TRUE(contains(problem([](auto& o) { o.inputs = {"-", "-"}; }), "only once"));
  EXPECT_TRUE(contains(problem([](auto& o) { o.keys = {"a", "a"}; }), "a key twice"));
  EXPECT_TRUE(contains(problem([](auto& o) { o.keys = {"a/b"}; }), "without '/'"));
  EXPECT_TRUE(contains(problem([](auto& o) { o.workers = 0; }), "--workers 0"));
  EXPECT_TRUE(contains(problem([&](auto& o) { o.output_prefix = (folder / "none/out").string(); }), "none/out"));
}

TEST(Preprocess, GivingUpLeavesWhatWasThere) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += "{\"text\":\"1 2 3\"}\n";
  PreprocessOptions options = options_for(folder, {folder.write("in", text).string()});
  folder.write("out_text_document.idx", "older");
  int calls = 0;
  const PreprocessEvents events{.progress = [&](const PreprocessProgress&) {
    if (++calls == 1) fail_user("enough");
  }};
  EXPECT_EQ(message_of<UserError>([&] { preprocess(options, NullTokenizer(100), events); }), "enough");
  EXPECT_EQ(slurp(folder / "out_text_document.idx"), "older");
  EXPECT_EQ(folder.files(), 2u);
  preprocess(options, NullTokenizer(100));
  EXPECT_EQ(documents_of(folder).size(), 200'000u);
}

// The fault is found before the first line is read, or, if the file appears later, before the first dataset has its
// name.
TEST(Preprocess, KeysArePublishedTogetherOrNotAtAll) {
  const TempFolder folder;
  PreprocessOptions options = options_for(folder, {folder.write("in", "{\"a\":\"1\",\"b\":\"2\"}\n").string()});
  options.keys = {"a", "b"};
  folder.write("out_a_document.idx", "older");
  const auto in_the_way = folder / "out_b_document.idx";
  bool began = false;
  std::vector<std::string> replaced;
  const PreprocessEvents events{.progress = [&](const PreprocessProgress&) { began = true; },
                                .replaces = [&](const std::string& prefix) { replaced.push_back(prefix); }};
  std::filesystem::create_directory(in_the_way);
  EXPECT_TRUE(contains(message_of<UserError>([&] { preprocess(options, NullTokenizer(100), events); }),
                       "out_b_document.idx: a folder has that name"));
  EXPECT_FALSE(began);
  EXPECT_EQ(folder.files(), 2u);

  std::filesystem::remove(in_the_way);
  const PreprocessEvents late{
      .progress = [&](const PreprocessProgress&) { std::filesystem::create_directory(in_the_way); }};
  EXPECT_TRUE(contains(message_of<UserError>([&] { preprocess(options, NullTokenizer(100), late); }), "a folder"));
  EXPECT_EQ(slurp(folder / "out_a_document.idx"), "older");
  EXPECT_EQ(folder.files(), 2u);

  std::filesystem::remove(in_the_way);
  preprocess(options, NullTokenizer(100), events);
  EXPECT_EQ(replaced, std::vector{(folder / "out_a_document").string()});
  EXPECT_EQ(documents_of(folder, "a"), (std::vector<Ids>{{1}}));
  EXPECT_EQ(documents_of(folder, "b"), (std::vector<Ids>{{2}}));
}

TEST(Preprocess, WithoutALineThereIsNoDataset) {
  const TempFolder folder;
  const auto problem = [&](const std::string& text, bool skip) {
    PreprocessOptions options = options_for(folder, {folder.write("in", text).string()});
    options.skip_bad_lines = skip;
    const std::string message = message_of<UserError>([&] { preprocess(options, NullTokenizer(100)); });
    EXPECT_EQ(folder.files(), 1u) << message;
    return message;
  };
  EXPECT_TRUE(contains(problem("", false), "/in: nothing to read; JSON Lines are expected"));
  EXPECT_TRUE(contains(problem("", true), "/in: nothing to read"));
  EXPECT_TRUE(contains(problem("a\nb\n", true), "/in: all 2 lines were skipped"));
  // Text is not JSON Lines, but a broken line among others is just that.
  EXPECT_TRUE(contains(problem("Once upon a time\n", false), "JSON Lines are expected"));
  EXPECT_FALSE(contains(problem("{\"text\":\"1\"}\nx\n", false), "JSON Lines"));
  EXPECT_FALSE(contains(problem("{\"text\"\n", false), "JSON Lines"));
}

TEST(Preprocess, ManyKeysAndVocabulariesChooseTheType) {
  const TempFolder folder;
  const PreprocessOptions options = options_for(folder, {folder.write("in", "{\"text\":\"65498 0\"}").string()});
  EXPECT_EQ(preprocess(options, NullTokenizer(65499)).outputs[0].type, TokenType::u16);
  EXPECT_EQ(slurp(folder / "out_text_document.bin"), std::string("\xda\xff\0\0", 4));
  EXPECT_EQ(preprocess(options, NullTokenizer(65500)).outputs[0].type, TokenType::i32);
  EXPECT_EQ(slurp(folder / "out_text_document.bin"), std::string("\xda\xff\0\0\0\0\0\0", 8));
}

TEST(Merge, EqualsOneDatasetWrittenAtOnce) {
  const TempFolder folder;
  const auto write = [&](const char* name, int first, int last, TokenType type = TokenType::u16) {
    IndexedWriter writer((folder / name).string(), type);
    for (int i = first; i < last; ++i) {
      writer.add_sequence(Ids(static_cast<std::size_t>(i * 100), i));
      if (i % 3 == 0) writer.add_sequence(Ids{i, i});
      if (i % 5 == 0) writer.end_document();  // documents of two and of none
      writer.end_document();
    }
    writer.finish();
    return (folder / name).string();
  };
  const std::string a = write("a", 0, 20), b = write("b", 20, 50), none = write("none", 0, 0);
  write("whole", 0, 50);
  const auto output = merge_datasets(std::vector{none, a, b}, (folder / "merged").string());
  EXPECT_EQ(slurp(folder / "merged.bin"), slurp(folder / "whole.bin"));
  EXPECT_EQ(slurp(folder / "merged.idx"), slurp(folder / "whole.idx"));
  EXPECT_EQ(output.documents, 60);
  const std::size_t files = folder.files();
  const std::string wide = write("wide", 0, 3, TokenType::i32);
  EXPECT_TRUE(contains(message_of<UserError>([&] {
                         merge_datasets(std::vector{a, wide}, (folder / "m").string());
                       }),
                       "holds uint16"));
  EXPECT_TRUE(contains(message_of<UserError>([&] {
                         merge_datasets(std::vector{a, a + "x"}, (folder / "m").string());
                       }),
                       "No such file"));
  const auto give_up = [](std::uint64_t bytes, std::uint64_t) { require_user(bytes == 0, "enough"); };
  EXPECT_THROW(merge_datasets(std::vector{b, a}, (folder / "m").string(), give_up), UserError);
  EXPECT_EQ(folder.files(), files + 2);
  const std::string before = slurp(folder / "a.bin");
  EXPECT_TRUE(contains(message_of<UserError>([&] { merge_datasets(std::vector{b, a}, a); }), "is one of the inputs"));
  EXPECT_TRUE(contains(
      message_of<UserError>([&] {
        merge_datasets(std::vector{b, a}, (folder / "../").string() + folder.path().filename().string() + "/a");
      }),
      "is one of the inputs"));
  EXPECT_EQ(slurp(folder / "a.bin"), before);
  merge_datasets(std::vector{a, b}, (folder / "merged").string());  // what was there and is no input is replaced
  EXPECT_EQ(slurp(folder / "merged.bin"), slurp(folder / "whole.bin"));
}

}  // namespace
}  // namespace tera::test
