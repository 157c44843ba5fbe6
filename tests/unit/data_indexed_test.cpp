#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tera/base/error.h"
#include "tera/data/indexed/indexed_dataset.h"
#include "tera/data/indexed/indexed_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

using Ids = std::vector<std::int32_t>;

// The bytes of an index, every field free to be wrong.
struct RawIndex {
  std::string magic{"MMIDIDX\0\0", 9};
  std::uint64_t version = 1;
  std::uint8_t code = 8;
  std::vector<std::int32_t> lengths{5, 3};
  std::vector<std::int64_t> pointers{0, 10};
  std::vector<std::int64_t> documents{0, 1, 2};
  std::uint64_t sequences = 2, entries = 3;
  std::string tail;
  std::size_t cut = 0;

  std::string bytes() const {
    std::string out = magic;
    const auto add = [&out](const auto* data, std::size_t count) {
      out.append(reinterpret_cast<const char*>(data), count * sizeof(*data));
    };
    add(&version, 1), add(&code, 1), add(&sequences, 1), add(&entries, 1);
    add(lengths.data(), lengths.size()), add(pointers.data(), pointers.size()), add(documents.data(), documents.size());
    out += tail;
    return out.substr(0, out.size() - cut);
  }
};

std::string from_hex(std::string_view hex) {
  std::string out;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

// What Megatron-LM's builder writes for two documents of 5 and 3 tokens in uint16.
const std::string& known_index() {
  static const std::string bytes = from_hex(
      "4d4d494449445800000100000000000000080200000000000000030000000000000005000000030000000000000000000000"
      "0a00000000000000000000000000000001000000000000000200000000000000");
  return bytes;
}

std::string prefix_of(const TempFolder& folder, const RawIndex& index, const std::string& data) {
  folder.write("d.idx", index.bytes());
  folder.write("d.bin", data);
  return (folder / "d").string();
}

TEST(IndexedDataset, ReadsHandBuiltBytes) {
  EXPECT_EQ(RawIndex().bytes(), known_index());
  const TempFolder folder;
  const IndexedDataset data(prefix_of(folder, {}, from_hex("0100020003000400ffff070008000900")));
  EXPECT_EQ(data.sequences(), 2);
  EXPECT_EQ(data.documents(), 2);
  EXPECT_EQ(data.tokens(), 8);
  EXPECT_EQ(data.token_type(), TokenType::u16);
  Ids ids(5), part(2);
  data.read(0, 0, 65536, ids);
  EXPECT_EQ(ids, (Ids{1, 2, 3, 4, 65535}));
  data.read(1, 1, 10, part);
  EXPECT_EQ(part, (Ids{8, 9}));
  EXPECT_THROW(data.read(1, 2, 10, part), Error);
  EXPECT_THROW(data.read(2, 0, 10, part), Error);
  const std::string message = message_of<UserError>([&] { data.read(0, 3, 65535, part); });
  EXPECT_TRUE(contains(message, "d.bin: token 4 of sequence 0 is 65535") && contains(message, "vocabulary of 65535"))
      << message;
}

TEST(IndexedDataset, ReadsEveryTypeWithItsSign) {
  const TempFolder folder;
  for (const auto& [type, name] : EnumNames<TokenType>::values) {
    const std::string prefix = (folder / name).string();
    const bool negative = type != TokenType::u8 && type != TokenType::u16;
    IndexedWriter writer(prefix, type);
    writer.add_document(Ids{3, negative ? -1 : 2, 100});
    writer.finish();
    const IndexedDataset data(prefix);
    EXPECT_EQ(data.token_type(), type);
    EXPECT_EQ(data.stored(0).size(), 3 * size_of(type));
    Ids one(1);
    data.read(0, 2, 101, one);
    EXPECT_EQ(one[0], 100) << name;
    EXPECT_THROW(data.read(0, 2, 100, one), UserError);
    if (!negative) continue;
    EXPECT_THROW(data.read(0, 1, 200, one), UserError) << name;
  }
}

TEST(IndexedDataset, SaysWhatIsWrongWithAFile) {
  struct Case {
    std::function<void(RawIndex&)> spoil;
    const char* file;
    const char* field;
  };
  constexpr auto huge = std::numeric_limits<std::uint64_t>::max();
  const std::vector<Case> cases{
      {[](RawIndex& i) { i.magic[3] = 'X'; }, "d.idx", "magic"},
      {[](RawIndex& i) { i.version = 2; }, "d.idx", "version: 2"},
      {[](RawIndex& i) { i.code = 0; }, "d.idx", "dtype: code 0"},
      {[](RawIndex& i) { i.code = 9; }, "d.idx", "dtype: code 9"},
      {[](RawIndex& i) { i.sequences = huge; }, "d.idx", "sequence count"},
      {[](RawIndex& i) { i.sequences = huge / 12 + 2; }, "d.idx", "sequence count"},  // times 12 overflows to little
      {[](RawIndex& i) { i.entries = huge; }, "d.idx", "document count"},
      {[](RawIndex& i) { i.entries = huge / 8 + 2; }, "d.idx", "document count"},
      {[](RawIndex& i) { i.entries = 0, i.documents.clear(); }, "d.idx", "document count: no entries"},
      {[](RawIndex& i) { i.cut = 1; }, "d.idx", "document count"},
      {[](RawIndex& i) { i.cut = 48; }, "d.idx", "sequence count"},
      {[](RawIndex& i) { i.cut = 49; }, "d.idx", "header: the file has 33 bytes"},
      {[](RawIndex& i) { i.cut = 82; }, "d.idx", "header: the file has 0 bytes"},
      {[](RawIndex& i) { i.tail = "x"; }, "d.idx", "size: 1 bytes too many"},
      {[](RawIndex& i) { i.tail = "xy"; }, "d.idx", "sequence modes"},
      {[](RawIndex& i) { i.lengths[1] = -1; }, "d.idx", "sequence lengths: sequence 1"},
      {[](RawIndex& i) { i.lengths[1] = 4; }, "d.idx", "sequence pointers: sequence 1"},
      {[](RawIndex& i) { i.pointers[1] = -2; }, "d.idx", "sequence pointers: sequence 1"},
      {[](RawIndex& i) { i.pointers[1] = 17; }, "d.idx", "sequence pointers: sequence 1"},
      {[](RawIndex& i) { i.pointers[1] = std::numeric_limits<std::int64_t>::max(); }, "d.idx", "sequence pointers"},
      {[](RawIndex& i) { i.code = 4; }, "d.idx", "sequence pointers: sequence 0 (5 tokens of int32"},
      {[](RawIndex& i) { i.code = 1; }, "d.bin", "size: 16 bytes"},  // the type is not the data's
      {[](RawIndex& i) { i.lengths[1] = 2; }, "d.bin", "size: 16 bytes, but the 2 sequences"},
      {[](RawIndex& i) { i.documents[0] = 1; }, "d.idx", "document index: it begins with 1"},
      {[](RawIndex& i) {
         i.documents = {0, 2, 1};
       },
       "d.idx", "document index: entry 2 is 1"},
      {[](RawIndex& i) {
         i.documents = {0, 1, 3};
       },
       "d.idx", "document index: it ends with 3"},
      {[](RawIndex& i) {
         i.documents = {0, -1, 2};
       },
       "d.idx", "document index: entry 1 is -1"},
  };
  for (const Case& c : cases) {
    const TempFolder folder;
    RawIndex index;
    c.spoil(index);
    const std::string prefix = prefix_of(folder, index, std::string(16, '\1'));
    const std::string message = message_of<UserError>([&] { IndexedDataset data(prefix); });
    EXPECT_TRUE(contains(message, std::string(c.file) + ": " + c.field)) << c.field << " / " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(IndexedDataset, SaysWhichFileIsMissing) {
  const TempFolder folder;
  const std::string prefix = (folder / "d").string();
  EXPECT_TRUE(contains(message_of<UserError>([&] { IndexedDataset data(prefix); }), "d.idx: No such file"));
  folder.write("d.idx", known_index());
  EXPECT_TRUE(contains(message_of<UserError>([&] { IndexedDataset data(prefix); }), "d.bin: No such file"));
  std::filesystem::create_directory(folder / "d.bin");
  EXPECT_TRUE(
      contains(message_of<UserError>([&] { IndexedDataset data(prefix); }), "d.bin is not a file but a folder"));
}

TEST(IndexedWriter, WritesTheKnownBytes) {
  const TempFolder folder;
  const std::string prefix = (folder / "d").string();
  IndexedWriter writer(prefix, token_type_for(65499));
  writer.add_document(Ids{1, 2, 3, 4, 5});
  writer.add_document(Ids{7, 8, 9});
  EXPECT_FALSE(path_exists(prefix + ".idx"));
  writer.finish();
  EXPECT_EQ(slurp(prefix + ".idx"), known_index());
  EXPECT_EQ(slurp(prefix + ".bin"), from_hex("01000200030004000500070008000900"));
  EXPECT_EQ(folder.files(), 2u);
  EXPECT_EQ(token_type_for(65500), TokenType::i32);
}

TEST(IndexedWriter, KeepsEmptyDocumentsSentencesAndModes) {
  const TempFolder folder;
  const std::string prefix = (folder / "d").string();
  IndexedWriter writer(prefix, TokenType::i32, IndexedWriter::Modes::stored);
  writer.end_document();  // nothing in it
  writer.add_sequence(Ids{1, 2}, 0);
  writer.add_sequence(Ids{}, 1);
  writer.end_document();
  writer.finish();
  EXPECT_THROW(IndexedDataset data(prefix), UserError);  // modes, and nobody said so
  const IndexedDataset data(prefix, IndexedDataset::Modes::stored);
  EXPECT_EQ(data.documents(), 2);
  EXPECT_EQ(data.sequences(), 2);
  EXPECT_EQ(data.document_index()[1], 0);
  EXPECT_EQ(data.document_index()[2], 2);
  EXPECT_EQ(data.pointers()[1], 8);
  EXPECT_EQ(data.modes()[0], 0);
  EXPECT_EQ(data.modes()[1], 1);
}

TEST(IndexedWriter, JoinedDatasetsEqualOneWrittenAtOnce) {
  const TempFolder folder;
  const auto write = [&](const char* name, int first, int last) {
    IndexedWriter writer((folder / name).string(), TokenType::u16);
    for (int i = first; i < last; ++i) {
      writer.add_sequence(Ids(static_cast<std::size_t>(i * 1000), i));  // the buffer is flushed in between
      if (i % 3 == 0) writer.add_sequence(Ids{i, i});
      writer.end_document();
    }
    writer.finish();
  };
  write("a", 0, 20), write("b", 20, 50), write("whole", 0, 50);
  IndexedWriter joined((folder / "joined").string(), TokenType::u16);
  joined.append(IndexedDataset((folder / "a").string()));
  joined.append(IndexedDataset((folder / "b").string()));
  joined.finish();
  EXPECT_EQ(slurp(folder / "joined.idx"), slurp(folder / "whole.idx"));
  EXPECT_EQ(slurp(folder / "joined.bin"), slurp(folder / "whole.bin"));
  IndexedWriter other((folder / "other").string(), TokenType::i32);
  EXPECT_THROW(other.append(IndexedDataset((folder / "a").string())), UserError);
}

TEST(IndexedWriter, LeavesNothingBehindUnlessFinished) {
  const TempFolder folder;
  {
    IndexedWriter writer((folder / "d").string(), TokenType::u16);
    writer.add_document(Ids(3'000'000, 7));
    EXPECT_TRUE(contains(message_of<UserError>([&] {
                           writer.add_document(Ids{1, 65536});
                         }),
                         "65536 does not fit uint16"));
    EXPECT_THROW(writer.add_document(Ids{-1}), UserError);
  }
  EXPECT_EQ(folder.files(), 0u);
  IndexedWriter empty((folder / "e").string(), TokenType::u16);
  empty.finish();
  const IndexedDataset data((folder / "e").string());
  EXPECT_EQ(data.sequences() + data.documents() + data.tokens(), 0);
}

}  // namespace
}  // namespace tera::test
