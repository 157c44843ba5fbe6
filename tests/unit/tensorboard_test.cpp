// TensorBoard event files: the bytes of TensorBoard's own writer, and what a run's numbers become.

#include "tera/train/sinks/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <vector>

#include "tera/base/checksum.h"
#include "tests/support/count_news.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    constexpr std::string_view digits = "0123456789abcdef";
    text += digits[static_cast<unsigned char>(byte) >> 4];
    text += digits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

// Written by TensorBoard 2.21 (RecordWriter, Event and Summary of its protobufs): the version, an evaluation before the
// first step, and a step with a long name and a NaN.
TEST(Tensorboard, WritesTheBytesOfTensorboard) {
  TensorboardEvents events;
  events.add_version(1763600000.5);
  events.begin(1763600000.5, 0);
  events.scalar("eval_loss", 2.5f);
  events.end();
  events.begin(1763600000.75, 300);
  events.scalar("loss", 1.25f);
  events.scalar("lr", 3e-4f);
  events.scalar(std::string(200, 'x'), std::numeric_limits<float>::quiet_NaN());
  events.end();
  std::string x;
  for (int i = 0; i < 200; ++i) x += "78";
  EXPECT_EQ(hex(events.records()),
            "1800000000000000a37f4b2209000020a09947da411a0d627261696e2e4576656e743a329c1279d31d00000000000000602f"
            "df2309000020a09947da412a120a100a096576616c5f6c6f737315000020404cb3e0a6fa0000000000000010e14e9d090000"
            "30a09947da4110ac022aeb010a0b0a046c6f7373150000a03f0a090a026c721552499d390ad0010ac801" +
                x + "150000c07f768deef8");
}

// SessionLog START of the same writer: a run that goes on from step 300.
TEST(Tensorboard, SaysWhereARunGoesOn) {
  TensorboardEvents events;
  events.add_start(1763600000.75, 300);
  EXPECT_EQ(hex(events.records()), "100000000000000095fbfe1809000030a09947da4110ac023a02080139d37ec5");
}

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

// The data of each record, with both checksums checked.
std::vector<std::string> records_of(const std::string& file) {
  const auto word = [&](std::size_t at) {
    std::uint32_t value = 0;
    std::memcpy(&value, file.data() + at, sizeof(value));
    return value;
  };
  const auto checksum = [](std::string_view bytes) {
    const std::uint32_t crc = crc32c_by_tables(std::as_bytes(std::span(bytes)));
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  };
  std::vector<std::string> records;
  for (std::size_t at = 0; at < file.size();) {
    const std::size_t length = word(at);
    EXPECT_EQ(word(at + 8), checksum(file.substr(at, 8)));
    records.push_back(file.substr(at + 12, length));
    EXPECT_EQ(word(at + 12 + length), checksum(records.back()));
    at += 16 + length;
  }
  return records;
}

TEST(Tensorboard, StepsAndEvaluationsOfARun) {
  const TempFolder folder;
  const std::vector<double> losses{2, 3};
  const std::vector<Metric> values{{"loss", 1.5},
                                   {"tokens", std::int64_t{4096}},
                                   {"skipped", false},
                                   {"mfu", std::monostate{}},
                                   {"mtp_losses", std::span<const double>(losses)},
                                   {"grad_norm", 0.25}};
  const std::vector<SetLoss> sets{{"books", 2.0}};
  {
    TensorboardSink sink(folder / "events");
    sink.step({.step = 1, .values = values});
    sink.eval({.step = 1, .eval_loss = 2.5, .tokens = 4096, .sets = sets});
    EXPECT_EQ(news_during([&] { sink.step({.step = 2, .values = values}); }), 0) << "a step allocates";
  }
  const auto files = files_in(folder / "events");
  ASSERT_EQ(files.size(), 1u);
  EXPECT_TRUE(files[0].filename().string().starts_with("events.out.tfevents."));
  const std::vector<std::string> records = records_of(slurp(files[0]));
  ASSERT_EQ(records.size(), 5u) << "version, start, step, evaluation, step";
  EXPECT_NE(records[0].find("brain.Event:2"), std::string::npos);
  for (const std::size_t step : {2u, 4u}) {
    for (const char* name : {"loss", "tokens", "skipped", "mtp_losses/0", "mtp_losses/1", "grad_norm"})
      EXPECT_NE(records[step].find(name), std::string::npos) << name;
    EXPECT_EQ(records[step].find("mfu"), std::string::npos) << "it is not known";
  }
  EXPECT_NE(records[3].find("eval_loss/books"), std::string::npos);
}

// A run that goes on adds a file, and leaves those of before.
TEST(Tensorboard, EachRunHasAFileOfItsOwn) {
  const TempFolder folder;
  for (int run = 0; run < 3; ++run) TensorboardSink sink(folder / "events");
  EXPECT_EQ(files_in(folder / "events").size(), 3u);
}

}  // namespace
}  // namespace tera::test
