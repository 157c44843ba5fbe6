#pragma once
// The folder that checkpoints are saved in, from the view of its only writer. Publishing is atomic.
//
//   DIR/latest                  names the newest complete checkpoint
//   DIR/step_00000100/          complete: its manifest.json was written and synced after all else
//   DIR/step_00000200.writing/  in progress; published by one rename, and only then are older ones removed
//   DIR/latest.next             names a complete checkpoint that is about to be published
//   DIR/.lock                   held by the run that saves here, for as long as it lives
//
// A replaced checkpoint is first renamed (.old) and removed after publishing, so a complete one exists at every moment.

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

#include "tera/base/file.h"

namespace tera {

class CheckpointFolder {
 public:
  // Makes the folder and locks it. UserError when another run saves there.
  explicit CheckpointFolder(std::filesystem::path root);

  const std::filesystem::path& root() const { return root_; }

  static std::filesystem::path complete(const std::filesystem::path& root, std::int64_t step);     // .../step_00000100
  static std::filesystem::path in_progress(const std::filesystem::path& root, std::int64_t step);  // ... .writing

  // Crash recovery: finishes or removes what a crash left; a complete checkpoint is never removed unless another of its
  // step replaces it. Must be called before begin(), when nobody reads the result of find_newest() any more.
  void recover();
  // Removes all complete checkpoints up to `step` but the newest `keep_last` (0: removes none); never that of `step`.
  void remove_older(std::int64_t step, std::int64_t keep_last);

  // UserError if the file system has fewer free bytes.
  void check_free_space(std::int64_t step, std::uint64_t bytes) const;
  // Makes an empty folder for the files of a new checkpoint.
  void begin(std::int64_t step);
  // Writes the manifest, renames the folder, updates `latest`, then calls remove_older(). Once the manifest is written
  // the new checkpoint is never deleted: if it cannot be published, the UserError says where it is.
  void publish(std::int64_t step, const std::string& manifest, std::int64_t keep_last);
  // Removes the folder that begin() made, unless it has a manifest.
  void abandon(std::int64_t step) noexcept;

 private:
  void recover(std::int64_t step, bool announced);
  void move_into_place(std::int64_t step);
  void name_as_latest();

  std::filesystem::path root_;
  FileDescriptor lock_;
  std::set<std::int64_t> known_;  // known to be complete: published by this process, or checked
};

}  // namespace tera
