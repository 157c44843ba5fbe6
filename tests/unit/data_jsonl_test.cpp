// Lines of JSON: what a line may be, how files are cut into lines, and compressed input.

#include <gtest/gtest.h>
#include <simdjson.h>
#include <zlib.h>
#include <zstd.h>

#include <random>

#include "tera/base/error.h"
#include "tera/data/preprocess/compressed_input.h"
#include "tera/data/preprocess/jsonl_blocks.h"
#include "tera/data/preprocess/jsonl_line.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using Texts = std::vector<std::string>;

Texts texts_of(std::string_view line, const std::string& key = "text") {
  JsonlParser parser({key});
  parser.parse(line);
  const auto texts = parser.texts(0);
  return {texts.begin(), texts.end()};
}

std::string problem_of(std::string_view line) {
  return message_of<UserError>([&] { texts_of(line); });
}

TEST(JsonlLine, FindsTheTextWhateverIsAroundIt) {
  EXPECT_EQ(texts_of(R"({"text":"abc"})"), Texts{"abc"});
  EXPECT_EQ(texts_of(" \t{ \"a\" : 1 , \"text\" : \"abc\" , \"b\" : [ ] } "), Texts{"abc"});
  EXPECT_EQ(texts_of(R"({"x":{"text":"no"},"text":"yes","y":[{"text":"no"},[[]],{}]})"), Texts{"yes"});
  EXPECT_EQ(texts_of(R"({"n":[0,-0,1.5,-2e-3,3E+4,123456789012345678901234567890,1e999,NaN,Infinity,-Infinity],)"
                     R"("l":[true,false,null],"text":""})"),
            Texts{""});
  EXPECT_EQ(texts_of(R"({"text":["a","","b"]})"), (Texts{"a", "", "b"}));
  EXPECT_EQ(texts_of(R"({"text":[ ]})"), Texts{});
  EXPECT_EQ(texts_of(R"({"":"empty","text":1})", ""), Texts{"empty"});
  EXPECT_EQ(texts_of("{\"text\":\"" + std::string(100'000, 'x') + "\"}"), Texts{std::string(100'000, 'x')});
  const std::string deep = std::string(999, '[') + std::string(999, ']');
  EXPECT_EQ(texts_of("{\"deep\":" + deep + ",\"text\":\"a\"}"), Texts{"a"});
}

TEST(JsonlLine, GivesBackTheMemoryOfLongLines) {
  JsonlParser parser({"text"});
  const std::string long_text(std::size_t{20} << 20, 'x');
  parser.parse("{\"text\":\"" + long_text + "\"}");
  EXPECT_LT(parser.memory(), 1U << 20);  // nothing to decode
  parser.parse("{\"text\":\"\\n" + long_text + "\"}");
  EXPECT_EQ(parser.texts(0)[0].size(), long_text.size() + 1);
  EXPECT_GT(parser.memory(), std::size_t{20} << 20);
  parser.parse("{\"text\":\"\\n\"}");
  EXPECT_LT(parser.memory(), 1U << 20);
  std::string list = "{\"text\":[\"\"";
  for (int i = 0; i < 500'000; ++i) list += ",\"\"";
  const std::string line = list + "]}";
  parser.parse(line);
  EXPECT_EQ(parser.texts(0).size(), 500'001U);
  parser.trim();
  EXPECT_LT(parser.memory(), 1U << 20);
  EXPECT_TRUE(parser.texts(0).empty());
}

TEST(JsonlLine, OfEqualKeysTheLastCounts) {
  EXPECT_EQ(texts_of(R"({"text":5,"text":"a","text":"b"})"), Texts{"b"});
  EXPECT_EQ(texts_of(R"({"text":"a","\u0074e\u0078t":"b"})"), Texts{"b"});
  EXPECT_TRUE(contains(problem_of(R"({"text":"a","text":null})"), "\"text\" is null"));
}

TEST(JsonlLine, DecodesEscapesAsPythonDoes) {
  EXPECT_EQ(texts_of(R"({"text":"\"\\\/\b\f\n\r\t"})"), Texts{"\"\\/\b\f\n\r\t"});
  EXPECT_EQ(texts_of(R"({"text":"a\u0041\u00e9\u4e2dz"})"), Texts{"aA\u00e9\u4e2dz"});
  EXPECT_EQ(texts_of(R"({"text":"\ud83d\ude00\uD83D\uDE00"})"), Texts{"\U0001f600\U0001f600"});
  EXPECT_EQ(texts_of(R"({"text":"\u0000\u001f\uffff"})"), (Texts{std::string("\0\x1f\xef\xbf\xbf", 5)}));
  EXPECT_EQ(texts_of(R"({"text":"\\ud800"})"), Texts{"\\ud800"});
  EXPECT_EQ(texts_of("{\"text\":\"\u00e9\U0001f600\x7f\"}"), Texts{"\u00e9\U0001f600\x7f"});
  for (const char* lone : {R"(\ud800)", R"(a\udc00b)", R"(\ud800\ud800)", R"(\ud83d\u0041)", R"(\udc00\ud800)"}) {
    const std::string line = std::string(R"({"text":")") + lone + "\"}";
    EXPECT_TRUE(contains(problem_of(line), "half a surrogate pair")) << line;
    EXPECT_EQ(texts_of(std::string(R"({"text":"a",")") + lone + R"(":")" + lone + "\"}"), Texts{"a"}) << line;
  }
}

TEST(JsonlLine, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "blank"},
      {" \t ", "blank"},
      {"\xef\xbb\xbf{\"text\":\"a\"}", "byte order mark"},
      {"[\"text\"]", "no object"},
      {"\"text\"", "no object"},
      {"text", "no object"},
      {"{}", "\"text\" is missing"},
      {R"({"Text":"a"})", "\"text\" is missing"},
      {R"({"text":5})", "\"text\" is a number"},
      {R"({"text":NaN})", "\"text\" is a number"},
      {R"({"text":true})", "\"text\" is true or false"},
      {R"({"text":{"a":"b"}})", "\"text\" is an object"},
      {R"({"text":["a",["b"]]})", "a list with a list in it"},
      {R"({"text":"a"} x)", "byte 14: something follows"},
      {R"({"text":"a"}{"text":"b"})", "something follows"},
      {R"({"text":"a",})", "key is needed"},
      {R"({,"text":"a"})", "a string in double quotes"},
      {R"({"text" "a"})", "a colon"},
      {R"({"text":"a")", "a comma or } is needed"},
      {R"({"text":"a)", "the string that begins at byte 9 does not end"},
      {R"({"text":"a\)", "no JSON"},
      {R"({"text":"a\u12)", "four hexadecimal"},
      {R"({"text":"a\u12g4"})", "four hexadecimal"},
      {R"({"text":"a\x"})", "\\ is not followed"},
      {R"({'text':'a'})", "double quotes"},
      {R"({"text":"a","b":[1,]})", "a value is needed"},
      {R"({"text":"a","b":[1 2]})", "a comma or ]"},
      {R"({"text":"a","b":[1}})", "a comma or ]"},
      {R"({"text":"a","b":{"c":1]})", "a comma or }"},
      {R"({"text":"a","b":tru})", "a value is needed"},
      {R"({"text":"a","b":01})", "a comma or }"},
      {R"({"text":"a","b":1.})", "a comma or }"},
      {R"({"text":"a","b":+1})", "a value is needed"},
      {R"({"text":"a","b":-})", "a value is needed"},
      {R"({"text":"a","b":1e})", "a comma or }"},
      {R"({"text":"a","b":})", "a value is needed"},
      {"{\"text\":\"a\tb\"}", "control character (0x09)"},
  };
  for (const auto& [line, words] : cases) {
    const std::string message = problem_of(line);
    EXPECT_TRUE(contains(message, words)) << line << " / " << message;
  }
  EXPECT_TRUE(contains(problem_of(std::string("{\"text\":\"a\0b\"}", 14)), "control character (0x00)"));
  EXPECT_TRUE(contains(problem_of("{\"text\":\"a\",\"b\":" + std::string(100'000, '[')), "more than 1000 deep"));
  EXPECT_TRUE(contains(problem_of("{\"text\":\"a\",\"b\":" + std::string(100'000, '{')), "no JSON"));
}

// Every string of these characters up to a length that another parser accepts must be accepted with the same meaning.
TEST(JsonlLine, AgreesWithAnotherParser) {
  const char* parts[] = {"{", "}", "[", "]", ",", ":", "\"text\"", "\"a\"", "\"\\n\"", "1", "-0.5e3", "null", " "};
  std::mt19937 random(1);
  simdjson::dom::parser parser;
  int taken = 0;
  for (int round = 0; round < 100'000; ++round) {
    std::string line = "{\"text\":";
    for (auto n = random() % 9; n > 0; --n) line += parts[random() % std::size(parts)];
    line += "}";
    simdjson::dom::object object;
    const bool valid = parser.parse(line).get(object) == simdjson::SUCCESS;
    try {
      const Texts texts = texts_of(line);
      ASSERT_TRUE(valid) << line;
      ++taken;
      simdjson::dom::element last;
      for (const auto field : object)
        if (field.key == "text") last = field.value;
      const bool is_text = last.is_string();
      ASSERT_TRUE(!is_text || texts == Texts{std::string(std::string_view(last))}) << line;
    } catch (const UserError& error) {
      const std::string_view message = error.what();
      ASSERT_TRUE(!valid || !contains(message, "no JSON")) << line << ": " << message;
    }
  }
  EXPECT_GT(taken, 1000);
}

Texts lines_of(std::string_view text) {
  Texts lines;
  for_each_line(text, [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

TEST(JsonlBlocks, LinesEndAsInPython) {
  EXPECT_EQ(lines_of(""), Texts{});
  EXPECT_EQ(lines_of("a"), Texts{"a"});
  EXPECT_EQ(lines_of("a\n"), Texts{"a"});
  EXPECT_EQ(lines_of("\n"), Texts{""});
  EXPECT_EQ(lines_of("a\nb\r\nc\rd"), (Texts{"a", "b", "c", "d"}));
  EXPECT_EQ(lines_of("a\r\r\n\n\rb\r"), (Texts{"a", "", "", "", "b"}));
  EXPECT_EQ(lines_of("a\u2028b\vc\fd"), Texts{"a\u2028b\vc\fd"});
}

struct Read {
  Texts lines;
  std::vector<std::size_t> files;  // file of each line
  int overlong = 0;
};

Read read_all(std::vector<std::string> files, BlockReader::Options options) {
  const std::atomic<bool> stop = false;
  BlockReader reader(std::move(files), options, stop);
  LineBlock block;
  Read read;
  std::size_t firsts = 0;
  while (reader.next(block)) {
    firsts += block.first ? 1 : 0;
    read.overlong += block.overlong ? 1 : 0;
    if (block.overlong) read.lines.emplace_back("<overlong>");
    for (const std::string& line : lines_of(block.text())) read.lines.push_back(line);
    read.files.resize(read.lines.size(), block.file);
    EXPECT_LE(firsts, block.file + 1);
  }
  return read;
}

TEST(JsonlBlocks, BlocksOfAnySizeHoldTheSameLines) {
  const TempFolder folder;
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    std::string text;
    for (int i = 0; i < 200; ++i) {
      const char* ends[] = {"\n", "\r\n", "\r", "\n\n", "\r\r\n"};
      text += std::string(random() % 30, static_cast<char>('a' + i % 26)) + ends[random() % 5];
    }
    if (round % 2 == 0) text += "last";
    const std::string file = folder.write("a", text).string(), empty = folder.write("b", "").string();
    for (const std::size_t block : {1, 2, 3, 7, 64, 4096, 100'000}) {
      const Read read = read_all({empty, file, empty, file}, {.block_bytes = block, .max_line_bytes = 1000});
      const Texts once_lines = lines_of(text);
      const std::size_t once = once_lines.size();
      Texts expected = once_lines;
      expected.insert(expected.end(), once_lines.begin(), once_lines.end());
      ASSERT_EQ(read.lines, expected) << "blocks of " << block;
      EXPECT_EQ(read.files.front(), 1u);
      EXPECT_EQ(read.files[once - 1], 1u);
      EXPECT_EQ(read.files[once], 3u);
    }
  }
}

TEST(JsonlBlocks, LinesThatAreTooLongAreReportedAndLeftOut) {
  const TempFolder folder;
  const std::string longest(50, 'y'), longer(500, 'z');
  for (const char* end : {"\n", "\r", "\r\n"}) {
    const std::string text = "a" + (end + longest) + end + longer + end + "b" + end + longer + end + end + longer;
    const std::string file = folder.write("a", text).string();
    for (std::size_t block = 1; block < 120; ++block) {
      const Read read = read_all({file}, {.block_bytes = block, .max_line_bytes = 50});
      // Whether the reader or the parser finds the error depends on the block; the line is never lost or cut.
      Texts lines = read.lines;
      for (std::string& line : lines)
        if (line == "<overlong>") line = longer;
      ASSERT_EQ(lines, (Texts{"a", longest, longer, "b", longer, "", longer})) << block;
      EXPECT_EQ(read.overlong, block <= 50 ? 3 : read.overlong);
    }
  }
}

std::string gzip(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(::deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(::deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  ::deflateEnd(&stream);
  return out;
}

std::string zstd(std::string_view text) {
  ZSTD_CCtx* context = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // as the program zstd does
  std::string out(::ZSTD_compressBound(text.size()), '\0');
  out.resize(::ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ::ZSTD_freeCCtx(context);
  return out;
}

std::string read_input(const std::filesystem::path& path, std::size_t piece) {
  const std::atomic<bool> stop = false;
  CompressedInput input(path.string(), stop);
  std::string text, buffer(piece, '\0');
  while (const std::size_t n = input.read(buffer)) text.append(buffer, 0, n);
  EXPECT_EQ(input.read(buffer), 0u);
  EXPECT_EQ(input.stored_bytes(), std::filesystem::file_size(path));
  return text;
}

TEST(CompressedInput, ReadsMembersAndFramesOneAfterTheOther) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += std::to_string(i * 7919);
  const std::string_view half = std::string_view(text).substr(0, 123'457),
                         rest = std::string_view(text).substr(123'457);
  const std::pair<const char*, std::string> files[] = {
      {"a.jsonl", text},
      {"a.jsonl.gz", gzip(text)},
      {"b.jsonl.gz", gzip(half) + gzip("") + gzip(rest)},
      {"padded.gz", gzip(half) + std::string(700'000, '\0') + gzip(rest) + std::string(3, '\0')},
      {"a.zst", zstd(text)},
      {"b.zst", zstd(half) + zstd("") + zstd(rest)},
      {"gzip without its name", gzip(text)},
      {"zstd without its name", zstd(text)},
  };
  for (const auto& [name, bytes] : files)
    for (const std::size_t piece : {1000, 65'536, 5'000'000})
      EXPECT_TRUE(read_input(folder.write(name, bytes), piece) == text) << name << " by " << piece;
  for (const char* name : {"empty", "empty.gz", "empty.zst"}) EXPECT_EQ(read_input(folder.write(name, ""), 100), "");
  EXPECT_EQ(read_input(folder.write("short", "ab"), 100), "ab");
}

// Compression is detected by the file's name, and for a pipe by its first bytes.
TEST(CompressedInput, NamesWhatItDoesNotRead) {
  const TempFolder folder;
  const std::atomic<bool> stop = false;
  const auto problem = [&](const std::string& name, const std::string& bytes) {
    const std::string path = folder.write(name, bytes).string();
    return message_of<UserError>([&] { CompressedInput input(path, stop); });
  };
  const std::string xz("\xfd\x37zXZ\0\0\4", 8), bzip2("BZh91AY&SY\x12", 11);
  EXPECT_TRUE(contains(problem("a", xz), "/a: xz data cannot be read, only plain, gzip and zstd"));
  EXPECT_TRUE(contains(problem("a", bzip2), "/a: bzip2 data cannot be read"));
  EXPECT_TRUE(contains(problem("a.xz", ""), "a.xz: xz data"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { stored_size(folder.write("a.jsonl.bz2", "").string()); }), "bzip2"));
  EXPECT_NO_THROW(CompressedInput(folder.write("a", "BZh is how bzip2 begins").string(), stop));
}

TEST(CompressedInput, RefusesWhatIsDamaged) {
  const TempFolder folder;
  std::mt19937 random(3);
  std::string text(100'000, '\0');
  for (char& c : text) c = static_cast<char>('a' + random() % 26);
  const auto problem = [&](const char* name, const std::string& bytes) {
    const auto path = folder.write(name, bytes);
    return message_of<UserError>([&] { read_input(path, 4096); });
  };
  for (const std::string& whole : {gzip(text), zstd(text)}) {
    const char* name = whole == gzip(text) ? "a.gz" : "a.zst";
    for (const std::size_t size : {std::size_t{1}, std::size_t{5}, whole.size() / 2, whole.size() - 1})
      EXPECT_TRUE(contains(problem(name, whole.substr(0, size)), "ends too early")) << size;
    std::string damaged = whole;
    damaged[whole.size() / 2] ^= 0x55;
    EXPECT_TRUE(contains(problem(name, damaged), std::string(name) + ": ")) << problem(name, damaged);
    EXPECT_TRUE(contains(problem(name, whole + "tail of text"), name));
    EXPECT_TRUE(contains(problem(name, "{\"text\":\"not compressed\"}"), name));
  }
  const std::atomic<bool> stop = false;
  EXPECT_TRUE(
      contains(message_of<UserError>([&] { CompressedInput input((folder / "none").string(), stop); }), "cannot open"));
  EXPECT_TRUE(
      contains(message_of<UserError>([&] { CompressedInput input(folder.path().string(), stop); }), "a folder"));
}

}  // namespace
}  // namespace tera::test
