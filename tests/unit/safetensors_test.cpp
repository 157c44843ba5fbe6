#include "tera/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tera/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

std::string file_bytes(std::string_view header, std::string_view data) {
  std::string out(8, '\0');
  const std::uint64_t size = header.size();
  std::memcpy(out.data(), &size, 8);
  out += header;
  out += data;
  return out;
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

TEST(Safetensors, ReadsAFileWrittenByHand) {
  const TempFolder folder;
  // Odd header length, so the data is unaligned; padded with spaces; a scalar; an empty tensor.
  const auto path = folder.write(
      "a.safetensors",
      file_bytes(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[2,10]},)"
                 R"("a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
                 R"("c":{"dtype":"I64","shape":[0,7],"data_offsets":[10,10]}}   )",
                 std::string("\x80\x3f\x00\x00\x80\x3f\x00\x00\x00\xc0", 10)));
  const SafetensorsFile file(path);
  ASSERT_EQ(file.entries().size(), 3u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.get("a").shape, shape(1));
  EXPECT_EQ(file.get("a").dtype, DType::bf16);
  EXPECT_EQ(file.read_floats("a"), std::vector<float>{1.0f});
  EXPECT_EQ(file.read_floats("b"), (std::vector<float>{1.0f, -2.0f}));
  EXPECT_EQ(file.get("c").shape, shape(0, 7));
  EXPECT_TRUE(file.get("c").bytes.empty());
  EXPECT_TRUE(contains(message_of<UserError>([&] { file.get("d"); }), "no tensor 'd'"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { file.read_floats("c"); }), "holds i64"));
}

TEST(Safetensors, RefusesForeignDtypesAndRanksByNameOnAccessOnly) {
  const TempFolder folder;
  const auto path =
      folder.write("a.safetensors", file_bytes(R"({"x":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]},)"
                                               R"("y":{"dtype":"U8","shape":[1,1,1,1,1,1],"data_offsets":[1,2]}})",
                                               "zz"));
  const SafetensorsFile file(path);
  EXPECT_TRUE(contains(message_of<UserError>([&] { file.get("x"); }), "F8_E4M3"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { file.get("y"); }), "6 dims"));
}

struct BadFile {
  std::string_view header, data, complaint;
};

const BadFile bad_files[] = {
    BadFile{"[]", "", "does not start with {"},
    BadFile{" {}", "", "does not start with {"},
    BadFile{"{ ", "", "not JSON"},
    BadFile{"{}x", "", "not JSON"},
    BadFile{"{\"\xff\":1}", "", "not JSON"},
    BadFile{R"({"a":1})", "", "the number 1"},
    BadFile{R"({"a":[]})", "", "a list"},
    BadFile{R"({"a":null})", "", "a null"},
    BadFile{R"({"a":true})", "", "a boolean"},
    BadFile{R"({"a":"x"})", "", "a string"},
    BadFile{R"({"a":{}})", "", "lacks"},
    BadFile{R"({"__metadata__":{"a":1}})", "", "the number 1"},
    BadFile{R"({"__metadata__":{"a":{}}})", "", "an object"},
    BadFile{R"({"__metadata__":{"a":"1","a":"2"}})", "", "twice"},
    BadFile{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", "z", "lacks"},
    BadFile{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", "z", "more than two"},
    BadFile{R"({"a":{"dtype":"U8","shape":[1],"offsets":[0,1]}})", "z", "unknown field 'offsets'"},
    BadFile{R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", "z", "twice"},
    BadFile{R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", "z", "a list"},
    BadFile{R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", "z", "the number -1"},
    BadFile{R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", "z", "the number 1.5"},
    BadFile{R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", "z", "the number 92233"},
    BadFile{R"({"a":{"dtype":"U9","shape":[1],"data_offsets":[0,1]}})", "z", "unknown dtype 'U9'"},
    BadFile{R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", "z", "have 2 bytes"},
    BadFile{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "zz", "should start at 0"},
    BadFile{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "z", "lies at bytes 1 to 0"},
    BadFile{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "", "0 bytes are there"},
    BadFile{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "zz", "2 bytes are there"},
    BadFile{R"({"a":{"dtype":"F64","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", "", "more than any file"},
    BadFile{
        R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
        "zz", "'a' occurs twice"},
    BadFile{
        R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
        "zzz", "should start at 2"}};

TEST(Safetensors, RefusesBadHeadersWithFileAndReason) {
  const TempFolder folder;
  for (const BadFile& bad : bad_files) {
    SCOPED_TRACE(bad.header);
    const auto path = folder.write("bad.safetensors", file_bytes(bad.header, bad.data));
    const std::string message = message_of<UserError>([&] { SafetensorsFile file(path); });
    EXPECT_TRUE(contains(message, "bad.safetensors")) << message;
    EXPECT_TRUE(contains(message, bad.complaint)) << message;
  }
}

TEST(Safetensors, RefusesWrongLengths) {
  const TempFolder folder;
  const auto open = [&](std::string_view content) {
    return message_of<UserError>([&] { SafetensorsFile file(folder.write("x", content)); });
  };
  EXPECT_TRUE(contains(open(""), "0 bytes"));
  EXPECT_TRUE(contains(open("1234567"), "7 bytes"));
  EXPECT_TRUE(contains(open(std::string(8, '\xff')), "claims a header"));
  EXPECT_TRUE(contains(open(std::string("\x03\0\0\0\0\0\0\0{}", 10)), "claims a header of 3 bytes; 2 follow"));
  EXPECT_TRUE(contains(open(std::string(8, '\0')), "claims a header of 0"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { SafetensorsFile file(folder / "none"); }), "No such file"));
  EXPECT_TRUE(contains(message_of<UserError>([&] { SafetensorsFile file(folder.path()); }), "no safetensors"));
}

// A sparse file, which takes no space on the disk.
TEST(Safetensors, AHeaderOver100MbIsRefusedUnread) {
  const TempFolder folder;
  const std::uint64_t header = 100'000'001;
  const auto path = folder.write("long", {reinterpret_cast<const char*>(&header), sizeof(header)});
  std::filesystem::resize_file(path, 8 + header);
  const std::string message = message_of<UserError>([&] { SafetensorsFile file(path); });
  EXPECT_TRUE(contains(message, "claims a header of 100000001 bytes")) << message;
}

TEST(Safetensors, DeepNestingIsRefusedAtOnce) {
  const TempFolder folder;
  const auto path = folder.write("deep", file_bytes("{\"a\":" + std::string(1'000'000, '['), ""));
  EXPECT_TRUE(contains(message_of<UserError>([&] { SafetensorsFile file(path); }), "a list"));
}

TEST(Safetensors, WritesWhatItReads) {
  const TempFolder folder;
  const auto path = folder / "w.safetensors";
  const std::vector<std::uint8_t> odd{1, 2, 3};
  const std::vector<float> floats{0.5f, -3.0f, 1e-30f, 7.0f};
  const std::vector<std::int64_t> longs{-1, 1LL << 40};
  SafetensorsWriter writer(path,
                           {{"odd", DType::u8, shape(3)},
                            {"we\"ird\n\u00e9", DType::f32, shape(2, 2)},
                            {"longs", DType::i64, shape(2)},
                            {"none", DType::bf16, shape(0)}},
                           {{"step", "7"}});
  writer.write("odd", bytes_of(odd));
  writer.write("longs", bytes_of(longs).first(5));
  writer.write("we\"ird\n\u00e9", bytes_of(floats));
  writer.write("longs", bytes_of(longs).subspan(5));
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.finish();
  EXPECT_EQ(folder.files(), 1u);

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"step", "7"}}));
  EXPECT_EQ(file.read_floats("we\"ird\n\u00e9"), floats);
  EXPECT_EQ(file.get("we\"ird\n\u00e9").shape, shape(2, 2));
  EXPECT_EQ(std::memcmp(file.get("longs").bytes.data(), longs.data(), 16), 0);
  EXPECT_EQ(std::memcmp(file.get("odd").bytes.data(), odd.data(), 3), 0);
  for (const auto& entry : file.entries()) {  // usable in place
    const StoredTensor tensor = file.get(entry.name);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % size_of(tensor.dtype), 0u) << entry.name;
  }
}

TEST(Safetensors, UnfinishedWritingLeavesNoFile) {
  const TempFolder folder;
  {
    SafetensorsWriter writer(folder / "w", {{"a", DType::u8, shape(2)}});
    const std::vector<std::uint8_t> one{1};
    writer.write("a", bytes_of(one));
    EXPECT_TRUE(contains(message_of<Error>([&] { writer.finish(); }), "lacks 1 bytes"));
    EXPECT_TRUE(contains(message_of<Error>([&] { writer.write("b", bytes_of(one)); }), "not announced"));
    writer.write("a", bytes_of(one));
    EXPECT_TRUE(contains(message_of<Error>([&] { writer.write("a", bytes_of(one)); }), "0 bytes left"));
  }
  EXPECT_EQ(folder.files(), 0u);
  EXPECT_THROW(SafetensorsWriter(folder / "w", {{"a", DType::u8, shape(2)}, {"a", DType::u8, shape(2)}}), Error);
}

}  // namespace
}  // namespace tera::test
