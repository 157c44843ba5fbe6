#pragma once
// The folder that checkpoints are saved in, seen by the one process that writes there.
//
//   DIR/latest                  names the newest complete one
//   DIR/step_00000100/          complete: its manifest.json was written and synced after all else
//   DIR/step_00000200.writing/  on its way; published by one rename, and only then are older ones removed
//   DIR/latest.next             names one that is complete and about to be published
//   DIR/.lock                   held by the run that saves here, for as long as it lives
//
// One that is replaced is moved aside (.old) and removed only after that, so a complete one exists at every moment.

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

#include "tera/base/file.h"

namespace tera {

class CheckpointFolder {
 public:
  // Makes the folder and takes its lock. UserError when another run saves there.
  explicit CheckpointFolder(std::filesystem::path root);

  const std::filesystem::path& root() const { return root_; }

  static std::filesystem::path complete(const std::filesystem::path& root, std::int64_t step);  // .../step_00000100
  static std::filesystem::path beside(const std::filesystem::path& root, std::int64_t step);    // ... .writing

  // Finishes or clears away what a crash left; what is complete is never removed unless another of its step replaces
  // it. To be done before begin(), when nobody reads what find_newest() has found any more.
  void mend();
  // Removes all complete ones but the newest `keep_last` up to this step (0: none); never that of the step.
  void remove_older(std::int64_t step, std::int64_t keep_last);

  // UserError where the file system has less room than that.
  void check_room(std::int64_t step, std::uint64_t bytes) const;
  // An empty folder for the files of a new one.
  void begin(std::int64_t step);
  // The manifest, the rename, `latest`; then remove_older(). Once the manifest is written the new one is never deleted:
  // if it cannot be published, the UserError says where it is.
  void publish(std::int64_t step, const std::string& manifest, std::int64_t keep_last);
  // Removes what begin() made, unless a manifest makes it a checkpoint.
  void abandon(std::int64_t step) noexcept;

 private:
  void mend(std::int64_t step, bool announced);
  void put_in_place(std::int64_t step);
  void name_as_latest();

  std::filesystem::path root_;
  FileDescriptor lock_;
  std::set<std::int64_t> known_;  // to be complete: published by this process, or looked at
};

}  // namespace tera
