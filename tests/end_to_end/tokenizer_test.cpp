// tera tokenizer, and runs with tokenizers from files.

#include <gtest/gtest.h>

#include "tests/end_to_end/program.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

const std::string golden = source_path("tests/golden/tokenizer");

std::string hugging_face(const std::string& path) {
  return " --tokenizer-type HuggingFaceTokenizer --tokenizer-model " + path;
}

class TokenizerCommand : public testing::Test {
 protected:
  Outcome pipe(const std::string& verb, const std::string& options, const std::string& lines) {
    const auto input = folder_.write("input", lines);
    return run_program("tokenizer " + verb + options + " < " + input.string());
  }
  TempFolder folder_;
};

TEST_F(TokenizerCommand, EncodesAndDecodesLines) {
  const Outcome encoded =
      pipe("encode", " --tokenizer-type ByteTokenizer", "\"ab\"\n \"\\u00e9\\ud83d\\ude00\\n\" \n\"\"");
  EXPECT_EQ(encoded.status, 0);
  EXPECT_EQ(encoded.output, "[97,98]\n[195,169,240,159,152,128,10]\n[]\n");
  const Outcome decoded = pipe("decode", " --tokenizer-type ByteTokenizer", "[97, 98]\n[]\n[34,92,10,7,195]\n");
  EXPECT_EQ(decoded.output, "\"ab\"\n\"\"\n\"\\\"\\\\\\n\\u0007\xef\xbf\xbd\"\n");
}

TEST_F(TokenizerCommand, NamesTheBadLine) {
  for (const auto& [line, why] :
       {std::pair{"nothing", "not a JSON string"}, std::pair{"\"\\ud800\"", "surrogate"},
        std::pair{"\"\\udc00\\ud800\"", "surrogate"}, std::pair{"\"\xff\"", "UTF-8"}, std::pair{"\"a\tb\"", "control"},
        std::pair{"\"a\" \"b\"", "JSON string"}, std::pair{"\"\\x\"", "escape"}, std::pair{"\"\\", "JSON string"},
        std::pair{"", "not a JSON string"}, std::pair{"\"\\u12g4\"", "hexadecimal"}}) {
    const Outcome outcome = pipe("encode", " --tokenizer-type ByteTokenizer", std::string("\"ok\"\n") + line + "\n");
    EXPECT_EQ(outcome.status, 2) << line;
    EXPECT_TRUE(contains(outcome.output, "[111,107]\n")) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, "line 2: ") && contains(outcome.output, why)) << outcome.output;
  }
  for (const std::string line : {"1", "[1,]", "[1 2]", "[a]", "[99999999999]", "[512]", "[-1]", "[1.5]"}) {
    const Outcome outcome = pipe("decode", " --tokenizer-type ByteTokenizer", line);
    EXPECT_EQ(outcome.status, 2) << line;
    EXPECT_TRUE(contains(outcome.output, "line 1: ")) << outcome.output;
  }
}

TEST_F(TokenizerCommand, DescribesATokenizer) {
  EXPECT_EQ(
      run_program("tokenizer info --tokenizer-type ByteTokenizer").output,
      "{\"tokenizer_type\":\"ByteTokenizer\",\"vocab_size\":512,\"eod\":0,\"bos\":null,\"pad\":1,\"unk\":null}\n");
  const Outcome bert = run_program("tokenizer info" + hugging_face(golden + "/word_piece.json"));
  EXPECT_TRUE(contains(bert.output, "\"vocab_size\":400,\"eod\":3,")) << bert.output;
  for (const auto& [options, why] :
       {std::pair{"", "--tokenizer-type is needed"}, std::pair{" --tokenizer-type Magic", "there are ByteTokenizer"},
        std::pair{" --tokenizer-type NullTokenizer", "vocab_size"},
        std::pair{" --tokenizer-type HuggingFaceTokenizer", "tokenizer.json"},
        std::pair{" --tokenizer-type HuggingFaceTokenizer --tokenizer-model /nowhere", "/nowhere"},
        std::pair{" --tokenizer-type GPT2BPETokenizer --vocab-file x", "merge_file"},
        std::pair{" --tokenizer-type BertWordPieceCase", "vocab_file"},
        std::pair{" --tokenizer-type SentencePieceTokenizer", "tokenizer_model"},
        std::pair{" --tokenizer-type TikTokenizer", "tokenizer_model"}}) {
    const Outcome outcome = run_program(std::string("tokenizer info") + options);
    EXPECT_EQ(outcome.status, 2) << options;
    EXPECT_TRUE(contains(outcome.output, why)) << outcome.output;
  }
}

TEST_F(TokenizerCommand, InspectsLargeFilesAndRefusesDeepOnes) {
  std::string vocab = "\"a\":0";
  for (int i = 1; i < 150'000; ++i) vocab += ",\"token" + std::to_string(i) + "\":" + std::to_string(i);
  const auto large =
      folder_.write("large.json", "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{" + vocab + "}}}");
  const Outcome known = run_program("inspect " + large.string());
  EXPECT_EQ(known.status, 0);
  EXPECT_TRUE(contains(known.output, "150000")) << known.output;
  const auto deep = folder_.write("deep.json", std::string(100'000, '['));
  const Outcome refused = run_program("inspect " + deep.string());
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(contains(refused.output, "deep.json: lists and objects are nested more than 64 deep")) << refused.output;
}

TEST_F(TokenizerCommand, TrainsOneThatItReads) {
  std::string text, jsonl;
  for (int i = 0; i < 50; ++i) {
    text += "the cat sat on the mat and the hat\n";
    jsonl += "{\"text\": \"the r\\u00e9sum\\u00e9 of the cat\"}\n";
  }
  const std::string inputs = folder_.write("a.txt", text).string() + " " + folder_.write("b.jsonl", jsonl).string();
  const std::string output = (folder_ / "tokenizer.json").string();
  const std::string command = "tokenizer train --vocab-size 280 --input " + inputs + " --output " + output;
  const Outcome trained = run_program(command);
  ASSERT_EQ(trained.status, 0) << trained.output;
  const std::string file = slurp(output);
  EXPECT_EQ(run_program(command + " --workers 3").status, 0);
  EXPECT_EQ(slurp(output), file);
  const Outcome info = run_program("tokenizer info" + hugging_face(output));
  EXPECT_TRUE(contains(info.output, "\"vocab_size\":280,\"eod\":0,")) << info.output;
  const Outcome encoded = pipe("encode", hugging_face(output), "\"the cat<|endoftext|>\"\n");
  EXPECT_TRUE(contains(encoded.output, ",0]\n")) << encoded.output;
  EXPECT_LT(encoded.output.size(), 20U);
  EXPECT_EQ(pipe("decode", hugging_face(output), encoded.output).output, "\"the cat<|endoftext|>\"\n");
  for (const auto& [options, why] :
       {std::pair{" --vocab-size 100", "--vocab-size"}, std::pair{" --json-key body", "line 1"},
        std::pair{" --pattern x", "gpt2"}, std::pair{" --min-frequency 0", "min-frequency"},
        std::pair{" --special-tokens '<q>' '<q>'", "there is such a token already"},
        std::pair{" --special-tokens '<q>' a", "there is such a token already"},
        std::pair{" --special-tokens ''", "empty"}}) {
    const Outcome outcome = run_program("tokenizer train --input " + inputs + " --output " + output + ".new" + options);
    EXPECT_EQ(outcome.status, 2) << options;
    EXPECT_TRUE(contains(outcome.output, why)) << outcome.output;
    EXPECT_FALSE(std::filesystem::exists(output + ".new"));
  }
}

// JSONL is detected by the file's name, and on standard input by the first line, unless an option gives the format.
TEST_F(TokenizerCommand, TakesJsonlFromAPipe) {
  std::string jsonl;
  for (int i = 0; i < 50; ++i) jsonl += "{\"text\": \"the cat sat on the mat\"}\n";
  const std::string file = folder_.write("in.jsonl", jsonl).string(), output = (folder_ / "t.json").string();
  const std::string train = "tokenizer train --vocab-size 262 --output " + output + " --input ";
  ASSERT_EQ(run_program(train + file).status, 0);
  const std::string expected = slurp(output);
  std::filesystem::remove(output);
  ASSERT_EQ(run_program(train + folder_.write("in.ndjson", jsonl).string()).status, 0);
  EXPECT_EQ(slurp(output), expected);
  for (const char* name : {"-", "/dev/stdin"}) {
    std::filesystem::remove(output);
    const Outcome found = run_program(train + name + " < " + file);
    EXPECT_TRUE(contains(found.output, "standard input is taken as JSONL with texts under \"text\"")) << found.output;
    EXPECT_EQ(slurp(output), expected) << name;
  }
  const Outcome twice = run_program(train + "- /dev/stdin < " + file);
  EXPECT_EQ(twice.status, 2);
  EXPECT_TRUE(contains(twice.output, "standard input (-) can be read only once")) << twice.output;
  const auto from_pipe = [&](const std::string& text, const std::string& options) {
    return run_program(train + "- " + options + " < " + folder_.write("in", text).string());
  };
  const Outcome found = from_pipe("\n" + jsonl, "--skip-bad-lines");
  EXPECT_TRUE(contains(found.output, "standard input is taken as JSONL with texts under \"text\"")) << found.output;
  EXPECT_EQ(slurp(output), expected);
  const Outcome plain = from_pipe("{ not JSON }\n" + jsonl, "");
  EXPECT_TRUE(contains(plain.output, "standard input is taken as plain text")) << plain.output;
  EXPECT_NE(slurp(output), expected);
  const Outcome detected = from_pipe(jsonl, "--input-format jsonl");
  EXPECT_FALSE(contains(detected.output, "taken as")) << detected.output;
  EXPECT_EQ(slurp(output), expected);
  EXPECT_EQ(from_pipe(jsonl, "--input-format text").status, 0);
  EXPECT_NE(slurp(output), expected);
  const Outcome wrong = from_pipe(jsonl, "--input-format csv");
  EXPECT_EQ(wrong.status, 2);
  EXPECT_TRUE(contains(wrong.output, "auto, jsonl")) << wrong.output;
}

TEST_F(TokenizerCommand, TrainsWithoutBadLines) {
  std::string good, bad;
  for (int i = 0; i < 50; ++i) {
    good += "{\"text\": \"the cat sat on the mat\"}\n";
    bad += "{\"text\": \"the cat sat on the mat\"}\n" + std::string(i < 20 ? "{\"text\": 1}\n" : "");
  }
  const std::string output = (folder_ / "t.json").string();
  const auto train = [&](const char* name, const std::string& text, const std::string& options) {
    return run_program("tokenizer train --vocab-size 262 --output " + output + " --input " +
                       folder_.write(name, text).string() + options);
  };
  ASSERT_EQ(train("good.jsonl", good, "").status, 0);
  const std::string expected = slurp(output);
  std::filesystem::remove(output);
  const Outcome refused = train("bad.jsonl", bad, "");
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(contains(refused.output, "bad.jsonl, line 2: ")) << refused.output;
  EXPECT_FALSE(std::filesystem::exists(output));
  const Outcome skipped = train("bad.jsonl", bad, " --skip-bad-lines");
  EXPECT_EQ(skipped.status, 0);
  EXPECT_TRUE(contains(skipped.output, "skipped: ") && contains(skipped.output, "20 lines skipped")) << skipped.output;
  EXPECT_EQ(slurp(output), expected);
  EXPECT_EQ(train("bad.txt", "a text\nbad \xff\n", "").status, 2);
  const Outcome text = train("bad.txt", "a text\nbad \xff\nsame text\n", " --skip-bad-lines");
  EXPECT_EQ(text.status, 0);
  EXPECT_TRUE(contains(text.output, "bad.txt, line 2: not UTF-8 text")) << text.output;
}

TEST_F(TokenizerCommand, InterruptedTrainingWritesNothing) {
  const std::string pipe_name = (folder_ / "pipe").string(), output = (folder_ / "t.json").string();
  const Outcome outcome =
      run_shell("mkfifo " + pipe_name + "; (echo some text; sleep 20) > " + pipe_name + " & writer=$!; \"" +
                std::string(paths::program) + "\" tokenizer train --input - --output " + output + " < " + pipe_name +
                " & program=$!; sleep 0.5; kill -INT $program; wait $program; echo status $?; kill $writer");
  EXPECT_TRUE(contains(outcome.output, "tera: interrupted; no tokenizer was written")) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "status 130")) << outcome.output;
  EXPECT_FALSE(std::filesystem::exists(output));
}

// Whatever its name, the first special token ends documents.
TEST_F(TokenizerCommand, FirstSpecialTokenEndsDocuments) {
  const std::string input = folder_.write("a.txt", "one text and another text\n").string();
  for (const char* tokens : {"'<|stop|>'", "'<|end|>' '<|im_start|>' '<|im_end|>'", "'</s>' '<|endoftext|>'"}) {
    std::filesystem::remove(folder_ / "tokenizer_config.json");
    const std::string output = (folder_ / "tokenizer.json").string();
    const Outcome trained = run_program("tokenizer train --vocab-size 270 --input " + input + " --output " + output +
                                        " --special-tokens " + tokens);
    ASSERT_EQ(trained.status, 0) << trained.output;
    const Outcome info = run_program("tokenizer info" + hugging_face(output));
    EXPECT_TRUE(contains(info.output, "\"eod\":0,")) << tokens << ": " << info.output;
  }
  const Outcome folder =
      run_program("tokenizer train --input " + input + " --output " + (folder_ / "no/t.json").string());
  EXPECT_EQ(folder.status, 0) << folder.output;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "no/t.json")) << "in a folder that was not there";
}

// A run takes its vocabulary from the tokenizer, and its checkpoint needs no other file to write text.
TEST_F(TokenizerCommand, RunsTrainAndGenerateWithIt) {
  folder_.write("t/tokenizer.json", slurp(golden + "/llama3.json"));
  folder_.write("text/a.txt", std::string(3000, 'a') + " license text\n");
  folder_.write("run.yaml",
                "model: {arch: llama, num_layers: 1, hidden_size: 32, num_attention_heads: 2}\n"
                "train: {train_iters: 2, micro_batch_size: 1, seq_length: 16, eval_iters: 0}\n"
                "optimizer: {lr: 0.001}\n"
                "dist: {device: cpu, threads: 1}\n"
                "dataset: {kind: text, data_path: " +
                    (folder_ / "text").string() +
                    "}\n"
                    "tokenizer: {tokenizer_type: HuggingFaceTokenizer, tokenizer_model: " +
                    (folder_ / "t").string() + "}\n");
  const std::string run = (folder_ / "run.yaml").string() + " run.dir=" + (folder_ / "run").string();
  const Outcome trained = run_program("train " + run + " checkpoint.save=" + (folder_ / "saved").string());
  ASSERT_EQ(trained.status, 0) << trained.output;
  const Outcome again = run_program("config " + (folder_ / "run/config.resolved.yaml").string());
  EXPECT_EQ(again.status, 0) << again.output;
  std::filesystem::remove_all(folder_ / "t");
  const Outcome text = run_program("generate --device cpu --threads 1 --max-new-tokens 4 --prompt license --model " +
                                   (folder_ / "saved").string());
  EXPECT_EQ(text.status, 0) << text.output;
  EXPECT_TRUE(contains(text.output, "license")) << text.output;
  const Outcome gone = run_program("train " + run);
  EXPECT_EQ(gone.status, 2);
  EXPECT_TRUE(contains(gone.output, "model.vocab_size")) << gone.output;
  folder_.write("t/tokenizer.json", slurp(golden + "/llama3.json"));
  const Outcome small = run_program("train " + run + " model.vocab_size=100");
  EXPECT_EQ(small.status, 2);
  EXPECT_TRUE(contains(small.output, "model.vocab_size")) << small.output;
}

}  // namespace
}  // namespace tera::test
