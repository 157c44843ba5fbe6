#pragma once
// The folder that checkpoints are saved in, seen by the one process that writes there.
//
//   DIR/latest                  names the newest complete one
//   DIR/step_00000100/          complete: its manifest.json was written and synced after all else
//   DIR/step_00000200.writing/  on its way; published by one rename, and only then are older ones removed
//   DIR/.lock                   held by the run that saves here, for as long as it lives
//
// One that is replaced is moved aside (.old) and removed only after that, so a complete one exists at every moment.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tera/base/file.h"

namespace tera {

class CheckpointFolder {
 public:
  static constexpr auto manifest_name = "manifest.json", latest_name = "latest";

  // Makes the folder, takes its lock and clears away what a crash left. UserError when another run saves there.
  explicit CheckpointFolder(std::filesystem::path root);

  const std::filesystem::path& root() const { return root_; }

  static std::filesystem::path complete(const std::filesystem::path& root, std::int64_t step);  // .../step_00000100
  static std::filesystem::path beside(const std::filesystem::path& root, std::int64_t step);    // ... .writing

  // An empty folder for the files of a new one.
  void begin(std::int64_t step);
  // The manifest, the rename, `latest`; then all but the newest `keep_last` are removed (0: none). Once the manifest is
  // written the new one is never deleted: if it cannot be published, the UserError says where it is.
  void publish(std::int64_t step, const std::string& manifest, std::int64_t keep_last);
  // Removes what begin() made, unless a manifest makes it a checkpoint.
  void abandon(std::int64_t step) noexcept;

 private:
  void mend();
  void remove_older(std::int64_t step, std::int64_t keep_last);

  std::filesystem::path root_;
  FileDescriptor lock_;
};

bool is_checkpoint(const std::filesystem::path& folder);  // has a manifest

// The checkpoint that a path stands for: itself, or what `latest` names in it. UserError if there is none.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

// The one that `latest` names; where that is gone or damaged, the newest complete one in the folder, if there is one.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& root);

}  // namespace tera
