#pragma once
// Finds checkpoints in a folder, from the view of readers. A checkpoint is complete if its manifest is valid and all of
// its files are there with their sizes; a crash may have left it under a name with a suffix.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tera/checkpoint/manifest.h"

namespace tera {

// File names in a folder of checkpoints.
struct CheckpointNames {
  static constexpr auto manifest = "manifest.json", latest = "latest";
  static constexpr auto next = "latest.next";  // names the complete checkpoint that `latest` is about to name
  static constexpr auto lock = ".lock";
  static constexpr std::string_view writing = ".writing", old = ".old";  // suffixes of the name of a step
};

std::filesystem::path step_folder(const std::filesystem::path& root, std::int64_t step, std::string_view suffix = {});

// Steps that have a folder with this suffix, the last first. Links are not listed, as others own their targets.
std::vector<std::int64_t> list_steps(const std::filesystem::path& root, std::string_view suffix = {});

bool has_step_name(const std::filesystem::path& folder);  // a suffix may follow

// The step that latest or latest.next names; nothing if there is no such file, or no step in it.
std::optional<std::int64_t> named_step(const std::filesystem::path& root, const char* file);

// Reads and checks the manifest of a checkpoint; sizes of files and the name of the folder must match, else UserError.
Manifest read_manifest(const std::filesystem::path& folder);

std::string why_incomplete(const std::filesystem::path& folder);  // empty: it is complete
inline bool is_complete(const std::filesystem::path& folder) { return why_incomplete(folder).empty(); }

// The newest complete checkpoint of an earlier step, in the same folder.
std::optional<std::filesystem::path> complete_before(const std::filesystem::path& folder);

struct NewestCheckpoint {
  std::optional<std::filesystem::path> folder{};
  std::vector<std::string> passed_over{};  // "step_00000009 (why)": incomplete, although named or well-formed
};

// For a run that saves there, or is about to: the checkpoint that was saved last, which may still have a suffix. If
// that is gone or damaged, the newest complete one before it; never a later one, which a run that went back has left.
NewestCheckpoint find_newest(const std::filesystem::path& root);

// The checkpoint that a path stands for: itself, or the one that `latest` names in it. UserError if there is none.
// While a run saves there, folders with a suffix are ignored.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

// Whether a run holds the lock of a folder of checkpoints, as far as the file system can tell.
bool is_locked(const std::filesystem::path& root);

}  // namespace tera
