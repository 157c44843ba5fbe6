// Saving despite failures: a complete checkpoint exists at every moment, and a load finds it or says where.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>

#include "tera/base/error.h"
#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/checkpoint_search.h"
#include "tera/checkpoint/checkpoint_writer.h"
#include "tests/end_to_end/training_run.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tera::test {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

const std::string step = "step_00000007";

class Saving : public testing::Test {
 protected:
  Saving() { model_.bind(backend_); }

  // The config serves only to distinguish checkpoints.
  void save(const std::string& config, std::int64_t at = 7) {
    save_checkpoint(root_, {.step = at, .config_yaml = config}, model_.params(), *backend_.ops, *backend_.device);
  }
  std::string failed_save(const std::string& config) {
    return message_of<UserError>([&] { save(config); });
  }
  void expect_loads(const fs::path& path, const std::string& config) {
    const Checkpoint checkpoint(path);
    EXPECT_EQ(checkpoint.config_yaml(), config);
    checkpoint.load_weights(model_.params(), *backend_.ops);
  }
  Names names() const {
    Names all;
    for (const auto& entry : fs::directory_iterator(root_))
      if (entry.path().filename() != ".lock") all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }

  TempFolder folder_;
  fs::path root_ = folder_ / "saved";
  tera::Setup setup_ = load_setup("tiny", {});
  Backend backend_ = make_backend({.device = DeviceChoice::cpu, .threads = 1});
  TrainingStep model_{setup_};
};

TEST_F(Saving, ReplacesTheOneOfTheSameStep) {
  save("first");
  expect_loads(root_, "first");
  save("second");
  expect_loads(root_, "second");
  EXPECT_EQ(names(), (Names{"latest", step}));
}

TEST_F(Saving, WhatACrashLeftIsNoHindrance) {
  for (const bool replaces : {false, true}) {
    fs::remove_all(root_);
    if (replaces) save("first");
    for (const char* suffix : {".writing", ".old"}) folder_.write("saved/" + step + suffix + "/junk/more", "x");
    if (replaces) expect_loads(root_, "first");
    save("second");
    expect_loads(root_, "second");
    EXPECT_EQ(names(), (Names{"latest", step}));
  }
}

// The moment between the two renames, and a new attempt that fails.
TEST_F(Saving, ACrashWhileReplacingLeavesAWholeOneThatALoadFinds) {
  for (const std::string suffix : {".old", ".writing"}) {
    save("first");
    fs::rename(root_ / step, root_ / (step + suffix));
    expect_loads(root_, "first");
    EXPECT_TRUE(contains(failed_save("\xff"), "not UTF-8"));
    expect_loads(root_, "first");
    save("second");
    expect_loads(root_, "second");
    EXPECT_EQ(names(), (Names{"latest", step}));
  }
}

TEST_F(Saving, AFailureBeforePublishingLeavesTheEarlierOne) {
  save("first");
  EXPECT_TRUE(contains(failed_save("bad \xff text"), "the config cannot be stored in a checkpoint: it is not UTF-8"));
  EXPECT_EQ(names(), (Names{"latest", step}));
  expect_loads(root_, "first");
}

// A mount point cannot be renamed, not even by root.
TEST_F(Saving, WhatCannotBePublishedIsKept) {
  fs::create_directories(root_ / step);
  const std::string step_folder = (root_ / step).string();
  if (std::system(fmt::format("mount -t tmpfs -o size=64k none {} 2>/dev/null", step_folder).c_str()) != 0)
    GTEST_SKIP() << "only root can mount";
  const std::string message = failed_save("first");
  EXPECT_EQ(std::system(fmt::format("umount {}", step_folder).c_str()), 0);
  EXPECT_TRUE(contains(message, "cannot rename " + step_folder + " to " + step_folder + ".old: ")) << message;
  EXPECT_TRUE(contains(message, "the new checkpoint is complete in " + step_folder + ".writing")) << message;
  expect_loads(step_folder + ".writing", "first");
  save("second");
  expect_loads(root_, "second");
  EXPECT_EQ(names(), (Names{"latest", step}));
}

TEST_F(Saving, IsPublishedEvenIfLatestCannotBeWritten) {
  folder_.write("saved/latest/in the way", "x");
  EXPECT_TRUE(contains(failed_save("first"), "latest"));
  expect_loads(root_ / step, "first");
}

// Between the rename of the folder and that of `latest`.
TEST_F(Saving, ACrashBeforeLatestIsNamedLosesNothing) {
  save("second");
  save("first", 9);
  folder_.write("saved/latest.next", "step_00000009\n");
  folder_.write("saved/latest", step + "\n");
  expect_loads(root_, "first");
  folder_.write("saved/latest.next", "step_00000008\n");  // a save that was interrupted earlier
  expect_loads(root_, "second");
}

// A checkpoint that replaces an earlier one of its step, which a run before going back had saved, is loaded from where
// it is written.
TEST_F(Saving, ACrashWhileReplacingNeverBringsBackWhatWasLeftBehind) {
  save("new");
  fs::rename(root_ / step, folder_ / "new");
  save("left behind");
  save("older", 5);  // `latest` is of the run that went back
  fs::rename(folder_ / "new", root_ / (step + ".writing"));
  folder_.write("saved/latest.next", step + "\n");
  expect_loads(root_, "new");
  EXPECT_TRUE(find_newest(root_).folder == root_ / (step + ".writing"));
  CheckpointFolder(root_).recover();
  expect_loads(root_, "new");
  EXPECT_EQ(names(), (Names{"latest", "step_00000005", step}));
  EXPECT_EQ(slurp(root_ / "latest"), step + "\n");
}

// A complete checkpoint is kept under its name, whatever has that name now; and no only checkpoint is removed.
TEST_F(Saving, MendingRemovesNothingThatIsTheOnlyOne) {
  for (const std::string suffix : {".old", ".writing"}) {
    fs::remove_all(root_);
    save("first");
    fs::rename(root_ / step, root_ / (step + suffix));
    folder_.write("saved/" + step + "/rank_00000.safetensors", "half of it");
    expect_loads(root_, "first");
    CheckpointFolder(root_).recover();
    EXPECT_EQ(names(), (Names{"latest", step})) << suffix;
    expect_loads(root_, "first");
  }
}

TEST_F(Saving, WhatCannotGetItsNameIsKept) {
  save("first");
  fs::rename(root_ / step, root_ / (step + ".writing"));
  fs::create_directories(root_ / step);
  const std::string step_folder = (root_ / step).string();
  if (std::system(fmt::format("mount -t tmpfs -o size=64k none {} 2>/dev/null", step_folder).c_str()) != 0)
    GTEST_SKIP() << "only root can mount";
  const std::string message = message_of<UserError>([&] { CheckpointFolder(root_).recover(); });
  EXPECT_EQ(std::system(fmt::format("umount {}", step_folder).c_str()), 0);
  EXPECT_TRUE(contains(message, "is complete in " + step_folder + ".writing")) << message;
  expect_loads(step_folder + ".writing", "first");
}

TEST_F(Saving, LeftoversOfACrashAreRemoved) {
  save("first");
  folder_.write("saved/latest.next.tmp-1-0", "step_00000009\n");
  folder_.write("saved/latest.next", "step_00000009\n");
  save("second", 8);
  EXPECT_EQ(names(), (Names{"latest", step, "step_00000008"}));
}

// The newest that counts is the one that `latest` names: later ones are of a run that was given up.
TEST_F(Saving, NothingLaterThanLatestIsTaken) {
  save("given up", 9);
  save("first", 5);
  save("second");
  fs::remove(root_ / step / "rank_00000.safetensors");
  const NewestCheckpoint newest = find_newest(root_);
  EXPECT_TRUE(newest.folder == root_ / "step_00000005");
  ASSERT_EQ(newest.passed_over.size(), 1u);
  EXPECT_TRUE(contains(newest.passed_over[0], step + " (cannot open ")) << newest.passed_over[0];
  EXPECT_TRUE(contains(message_of<UserError>([&] { Checkpoint{root_}; }), "step_00000005 is complete"));
}

// Readers ignore files that a saving run is writing.
TEST_F(Saving, WhoReadsWhileARunSavesTakesWhatIsPublished) {
  save("first");
  save("second", 9);
  fs::rename(root_ / "step_00000009", root_ / "step_00000009.writing");
  folder_.write("saved/latest.next", "step_00000009\n");
  folder_.write("saved/latest", step + "\n");
  EXPECT_FALSE(is_locked(root_));
  expect_loads(root_, "second");
  {
    const CheckpointFolder saving(root_);
    EXPECT_TRUE(is_locked(root_));
    expect_loads(root_, "first");
  }
  expect_loads(root_, "second");
}

// A checkpoint that a reader has found may be replaced or removed before it is opened: then the reader searches again.
TEST_F(Saving, WhoReadsWhileCheckpointsComeAndGoAlwaysFindsOne) {
  CheckpointFolder folder(root_);
  const auto publish = [&](std::int64_t at) {
    folder.begin(at);
    folder.publish(at, format_manifest({.source = {.step = at, .config_yaml = "x"}, .tensors = {}, .files = {}}), 1);
  };
  publish(1);
  std::atomic<bool> over = false;
  auto reading = std::async(std::launch::async, [&] {
    std::int64_t last = 0, read = 0;
    for (; !over; ++read) {
      const std::int64_t found = Checkpoint(root_).step();
      EXPECT_GE(found, last);
      last = found;
    }
    return read;
  });
  for (std::int64_t i = 0; i < 200; ++i) publish(1 + i / 4);  // replaced three times, then the next
  over = true;
  EXPECT_GT(reading.get(), 10);
}

TEST_F(Saving, OnlyOneRunSavesInAFolder) {
  {
    const CheckpointFolder other(root_);
    EXPECT_TRUE(contains(failed_save("first"), "another run is saving its checkpoints there"));
    EXPECT_EQ(names(), Names{});
  }
  save("first");
  expect_loads(root_, "first");
}

}  // namespace
}  // namespace tera::test
