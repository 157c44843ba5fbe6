#pragma once
// What lies in a folder of checkpoints, seen by those who read. Complete is a checkpoint whose manifest is sound and
// whose files are all there with their sizes; a crash may have left one under another name than its own.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tera/checkpoint/manifest.h"

namespace tera {

// Names in a folder of checkpoints.
struct CheckpointNames {
  static constexpr auto manifest = "manifest.json", latest = "latest";
  static constexpr auto next = "latest.next";  // what `latest` is about to name: that one is complete
  static constexpr auto lock = ".lock";
  static constexpr std::string_view writing = ".writing", old = ".old";  // after the name of a step
};

std::filesystem::path step_folder(const std::filesystem::path& root, std::int64_t step, std::string_view suffix = {});

// Steps that have a folder whose name ends so, the last first. Links are somebody else's, and are not listed.
std::vector<std::int64_t> list_steps(const std::filesystem::path& root, std::string_view suffix = {});

bool has_step_name(const std::filesystem::path& folder);  // any of those of one step

// The step that latest or latest.next names; nothing where there is no such file, or no step in it.
std::optional<std::int64_t> named_step(const std::filesystem::path& root, const char* file);

// Of a folder that holds one; sizes of files and the name of the folder are compared. UserError.
Manifest read_manifest(const std::filesystem::path& folder);

std::string why_incomplete(const std::filesystem::path& folder);  // empty: it is complete
inline bool is_complete(const std::filesystem::path& folder) { return why_incomplete(folder).empty(); }

// The newest complete one of an earlier step, in the same folder.
std::optional<std::filesystem::path> complete_before(const std::filesystem::path& folder);

struct NewestCheckpoint {
  std::optional<std::filesystem::path> folder{};
  std::vector<std::string> passed_over{};  // "step_00000009 (why)": what should have been complete, or seems to be one
};

// For a run that saves there, or is about to: the one that was saved last, which need not have its name yet. Where that
// is gone or damaged, the newest complete one before it; never a later one, which a run that went back has left behind.
NewestCheckpoint find_newest(const std::filesystem::path& root);

// The checkpoint that a path stands for: itself, or what `latest` names in it. UserError if there is none. While a run
// saves there, only what has its name counts.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

// Whether a run holds the lock of a folder of checkpoints, as far as the file system can tell.
bool is_locked(const std::filesystem::path& root);

}  // namespace tera
