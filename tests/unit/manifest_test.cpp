// The manifest of a checkpoint as text: what is written is read back, and nothing else is taken for it.

#include "tera/checkpoint/manifest.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tera/base/error.h"
#include "tests/support/expect_error.h"

namespace tera::test {
namespace {

Manifest small_manifest() {
  Manifest manifest;
  manifest.source = {.step = 12,
                     .config_yaml = "model:\n  arch: llama\n",
                     .consumed_samples = 96,
                     .updates = 11,
                     .seed = 3,
                     .started_from = "step_00000004"};
  manifest.files.push_back({.name = "rank_00000.safetensors", .bytes = 1000, .crc32c = 0x12345678});
  const Shape dims = shape(4, 8);
  manifest.tensors["a"] = {
      .dtype = DType::f32, .shape = dims, .pieces = {{.file = 0, .offset = 96, .slice = full_slice(dims)}}};
  return manifest;
}

TEST(Manifest, IsReadAsItWasWritten) {
  const Manifest manifest = small_manifest(), read = parse_manifest(format_manifest(manifest), "m");
  EXPECT_EQ(read.source.step, 12);
  EXPECT_EQ(read.source.consumed_samples, 96);
  EXPECT_EQ(read.source.updates, 11);
  EXPECT_EQ(read.source.seed, 3);
  EXPECT_EQ(read.source.started_from, "step_00000004");
  EXPECT_EQ(read.source.config_yaml, manifest.source.config_yaml);
  EXPECT_TRUE(read.tensors == manifest.tensors && read.files == manifest.files);
}

// A program that did not count tokens wrote none.
TEST(Manifest, TokensAreACountOrNone) {
  Manifest manifest = small_manifest();
  EXPECT_FALSE(parse_manifest(format_manifest(manifest), "m").source.consumed_tokens);
  manifest.source.consumed_tokens = 960;
  const std::string good = format_manifest(manifest), stored = "\"consumed_tokens\":960";
  EXPECT_EQ(parse_manifest(good, "m").source.consumed_tokens, 960);
  for (const char* other : {"95", "-960", "960.5", "\"960\"", "null", "9223372036854775808"}) {
    std::string text = good;
    text.replace(text.find(stored), stored.size(), fmt::format("\"consumed_tokens\":{}", other));
    EXPECT_EQ(message_of<UserError>([&] { parse_manifest(seal_manifest(text), "m"); }),
              "m: 'consumed_tokens' is no count of at least 'consumed_samples'")
        << other;
  }
}

TEST(Manifest, KeepsTheLossScale) {
  Manifest manifest = small_manifest();
  EXPECT_FALSE(parse_manifest(format_manifest(manifest), "m").source.loss_scale);
  manifest.source.skipped_samples = 8;
  for (const LossScale kept : {LossScale{65536, 12, 1}, LossScale{1000.0 / 3, 0, 0}, LossScale{0x1p-20, 5, 2}}) {
    manifest.source.loss_scale = kept;
    const CheckpointSource read = parse_manifest(format_manifest(manifest), "m").source;
    EXPECT_TRUE(read.loss_scale == kept) << kept.scale;
    EXPECT_EQ(read.skipped_samples, 8);
  }
}

// A program before there was a loss scale wrote neither.
TEST(Manifest, LossScalesThatAreNone) {
  Manifest manifest = small_manifest();
  manifest.source.skipped_samples = 8;
  manifest.source.loss_scale = {65536, 12, 1};
  const std::string good = format_manifest(manifest);
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return seal_manifest(text.replace(at, from.size(), to));
  };
  const CheckpointSource old = parse_manifest(edited("\"skipped_samples\":8,", ""), "m").source;
  EXPECT_EQ(old.skipped_samples, 0);
  for (const char* scale : {"0.0", "-1.0", "1e300", "\"x\"", "null"})
    EXPECT_TRUE(contains(message_of<UserError>([&] { parse_manifest(edited("65536.0", scale), "m"); }),
                         "m: 'loss_scale' lacks a positive 'scale'"))
        << scale;
  for (const char* count : {"-1", "1.5", "null", "9223372036854775807"})
    EXPECT_TRUE(contains(message_of<UserError>([&] {
                           parse_manifest(edited("\"good_steps\":12", fmt::format("\"good_steps\":{}", count)), "m");
                         }),
                         "m: 'loss_scale' lacks"))
        << count;
  EXPECT_TRUE(contains(
      message_of<UserError>([&] { parse_manifest(edited("\"skipped_samples\":8", "\"skipped_samples\":97"), "m"); }),
      "m: 'skipped_samples' is no part of 'consumed_samples'"));
}

TEST(Manifest, OneWrongBitAnywhereIsNoticed) {
  const std::string good = format_manifest(small_manifest());
  for (std::size_t position = 0; position < good.size(); ++position)
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[position] = static_cast<char>(bad[position] ^ (1 << bit));
      EXPECT_THROW(parse_manifest(bad, "m"), UserError) << "byte " << position << " bit " << bit;
    }
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_THROW(parse_manifest(good.substr(0, size), "m"), UserError) << size;
}

TEST(Manifest, SealsWhatWasEdited) {
  std::string text = format_manifest(small_manifest());
  EXPECT_EQ(seal_manifest(text), text);
  text.replace(text.find("\"updates\":11"), 12, "\"updates\":99");
  EXPECT_TRUE(contains(message_of<UserError>([&] { parse_manifest(text, "m"); }), "m: its checksum is "));
  EXPECT_EQ(parse_manifest(seal_manifest(text), "m").source.updates, 99);
}

}  // namespace
}  // namespace tera::test
