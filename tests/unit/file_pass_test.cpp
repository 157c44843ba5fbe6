// Passes over files larger than a chunk, with pieces that begin and end anywhere: what is read on the way, and damage.

#include "tera/checkpoint/file_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tera/base/checksum.h"
#include "tera/base/error.h"
#include "tera/train/backend.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

namespace fs = std::filesystem;

const Shape wide = shape(1700, 1003);
const Shape plain = shape(2'500'000);

// An element's value gives its position: exact in either dtype.
float value_at(std::int64_t position, DType dtype) {
  return static_cast<float>(dtype == DType::bf16 ? position * 7 % 251 : position);
}

// Two files: columns 0 to 400 of `wide` and the first part of `plain` in one, the rest of both in the other.
class FilePasses : public testing::Test {
 protected:
  FilePasses() {
    Manifest manifest;
    manifest.source.config_yaml = "x";
    manifest.tensors["wide"] = {.dtype = DType::f32, .shape = wide, .pieces = {}};
    manifest.tensors["plain"] = {.dtype = DType::bf16, .shape = plain, .pieces = {}};
    const std::int64_t cut = 1'234'567;
    std::string files[2];
    files[0] = std::string(24, 'h');  // a header, say
    files[1] = std::string(8, 'h');
    for (std::size_t i = 0; i < 2; ++i) {
      TensorSlice columns{.split = 1, .begin = i == 0 ? 0 : 400, .end = i == 0 ? 400 : wide[1]};
      columns.to = range_elements(columns, wide);
      add(manifest.tensors["wide"], columns, i, files[i]);
      add(manifest.tensors["plain"],
          {.split = 0, .begin = 0, .end = plain[0], .from = i == 0 ? 0 : cut, .to = i == 0 ? cut : plain[0]}, i,
          files[i]);
      const std::string name = i == 0 ? "a" : "b";
      folder_.write("step/" + name, files[i]);
      manifest.files.push_back({name, files[i].size(), crc32c(std::as_bytes(std::span(files[i])))});
    }
    folder_.write("step/manifest.json", format_manifest(manifest));
  }
  static void add(ManifestTensor& tensor, const TensorSlice& slice, std::size_t file, std::string& content) {
    tensor.pieces.push_back({file, content.size(), slice});
    for_each_shared(slice, full_slice(tensor.shape), tensor.shape, [&](const SharedRun& run) {
      for (std::int64_t i = 0; i < run.elements; ++i) {
        const float value = value_at(run.in_b + i, tensor.dtype);
        const BFloat16 half = to_bf16(value);
        if (tensor.dtype == DType::bf16)
          content.append(reinterpret_cast<const char*>(&half), sizeof(half));
        else
          content.append(reinterpret_cast<const char*>(&value), sizeof(value));
      }
    });
  }
  void expect_values(const char* name, const Shape& full, const TensorSlice& slice, const std::vector<float>& found,
                     const Checkpoint& checkpoint) const {
    const DType stored = checkpoint.find(name)->dtype;
    std::int64_t wrong = 0;
    for_each_shared(slice, full_slice(full), full, [&](const SharedRun& run) {
      for (std::int64_t i = 0; i < run.elements; ++i)
        wrong += found[static_cast<std::size_t>(run.in_a + i)] == value_at(run.in_b + i, stored) ? 0 : 1;
    });
    EXPECT_EQ(wrong, 0) << name << " " << slice.split << " " << slice.begin << "-" << slice.end << " of them "
                        << slice.from << "-" << slice.to;
  }
  void damage(const char* name, std::size_t position) const {
    std::string content = slurp(folder_ / name);
    content.at(position) ^= 1;
    folder_.write(name, content);
  }

  TempFolder folder_;
  Backend backend_ = make_backend({.device = DeviceChoice::cpu, .threads = 1});
};

// Any range of a range, as floats; each is read alone and all are read together.
TEST_F(FilePasses, TakesWhatIsWantedAndNothingElse) {
  const Checkpoint checkpoint(folder_ / "step");
  std::mt19937 random(1);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
  std::vector<std::vector<float>> memory;
  std::vector<std::pair<const char*, TensorSlice>> wanted;
  FilePass together(checkpoint);
  together.verify({});
  for (int round = 0; round < 40; ++round) {
    const bool first = round % 2 == 0;
    const char* const name = first ? "wide" : "plain";
    const Shape& full = first ? wide : plain;
    // Columns of one file or the other, or a range of elements.
    TensorSlice slice{.split = first ? 1 : 0, .begin = first && round % 4 == 0 ? 400 + below(300) : 0};
    slice.end = first ? (round % 4 == 0 ? slice.begin + 1 + below(300) : 1 + below(400)) : full[0];
    slice.from = below(range_elements(slice, full));
    slice.to = slice.from + 1 + below(range_elements(slice, full) - slice.from);
    ASSERT_TRUE(is_slice_of(slice, full));
    std::vector<float>& out = memory.emplace_back(static_cast<std::size_t>(slice.elements()), -1.0f);
    const StatePiece piece{.slice = slice, .data = make_tensor(out.data(), shape(slice.elements()), DType::f32)};
    FilePass alone(checkpoint);
    ASSERT_TRUE(alone.add(*checkpoint.find(name), piece));
    alone.run(backend_.ops.get());
    expect_values(name, full, slice, out, checkpoint);
    std::ranges::fill(out, -1.0f);
    ASSERT_TRUE(together.add(*checkpoint.find(name), piece));
    wanted.emplace_back(name, slice);
  }
  together.run(backend_.ops.get());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    expect_values(wanted[i].first, i % 2 == 0 ? wide : plain, wanted[i].second, memory[i], checkpoint);
}

TEST_F(FilePasses, StoredElementsThatLieApartHereAreNotTaken) {
  const Checkpoint checkpoint(folder_ / "step");
  std::vector<float> out(static_cast<std::size_t>(count(wide)));
  const StatePiece piece{.slice = full_slice(wide), .data = make_tensor(out.data(), shape(count(wide)), DType::f32)};
  FilePass pass(checkpoint);
  EXPECT_FALSE(pass.add(*checkpoint.find("wide"), piece));
  pass.run(backend_.ops.get());
  EXPECT_EQ(std::ranges::count(out, 0.0f), count(wide));
}

TEST_F(FilePasses, OneWrongBitAnywhereIsNoticedByWhoVerifiesThatFile) {
  const std::size_t bytes = fs::file_size(folder_ / "step/b");
  EXPECT_GT(bytes, ReadAhead::max_bytes);
  for (const std::size_t position : {std::size_t{0}, ReadAhead::max_bytes - 1, ReadAhead::max_bytes, bytes - 1}) {
    damage("step/b", position);
    const Checkpoint checkpoint(folder_ / "step");
    const auto message = [&](int rank) {
      FilePass pass(checkpoint);
      pass.verify({.rank = rank, .ranks = 2});
      pass.run(nullptr);
    };
    EXPECT_NO_THROW(message(0));
    EXPECT_TRUE(contains(message_of<UserError>([&] { message(1); }), "step/b: its checksum is ")) << position;
    EXPECT_TRUE(contains(message_of<UserError>([&] { checkpoint.verify(); }), "step/b: its checksum is ")) << position;
    damage("step/b", position);
    EXPECT_NO_THROW(checkpoint.verify());
  }
}

TEST_F(FilePasses, AFileThatIsShortenedOrRemovedMeanwhile) {
  const Checkpoint checkpoint(folder_ / "step");
  fs::resize_file(folder_ / "step/b", ReadAhead::max_bytes + 10);
  EXPECT_TRUE(contains(message_of<UserError>([&] { checkpoint.verify(); }), "step/b ended early"));
  fs::remove(folder_ / "step/b");
  EXPECT_TRUE(contains(message_of<UserError>([&] { checkpoint.verify(); }), "cannot open "));
}

}  // namespace
}  // namespace tera::test
