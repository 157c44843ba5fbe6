#pragma once
// Saves checkpoints while a model trains. Every rank writes what it has to a file of its own; when all are on the disk,
// the first rank publishes them with one manifest.
//
//   all ranks      save():  copy to the host | write and sync ...          | publish(): tell the checksum
//   first rank              folder           | write and sync ...          | manifest, rename, latest, remove old ones
//                           the step stops   | asynchronous: steps go on   | then "durable at step N"
//
// All ranks make the same calls. A folder of checkpoints is on a file system that all ranks see.

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>

#include "tera/checkpoint/checkpoint_folder.h"
#include "tera/checkpoint/manifest.h"
#include "tera/checkpoint/rank_file.h"
#include "tera/comm/comm.h"
#include "tera/tensor/device.h"

namespace tera {

class CheckpointWriter {
 public:
  struct Options {
    std::filesystem::path root;
    bool async = false;
    std::int64_t keep_last = 0;                      // 0: all
    std::vector<std::filesystem::path> beside = {};  // small files to keep with the tensors, where they exist
    std::shared_ptr<CheckpointFolder> folder = {};   // root, where the first rank has its lock already
    std::int64_t saved_step = -1;                    // in the folder already, and the newest that counts
    // Called on the first rank, perhaps by another thread: all of it is on the disk under its name.
    std::function<void(std::int64_t step, const std::filesystem::path& folder)> durable = {};
  };
  struct Rank {
    Comm& world;  // joined with ops
    Ops& ops;
    Device& device;  // gives host memory for copies: of all this rank writes when asynchronous, else a few megabytes
    Replicas replicas{};
  };
  CheckpointWriter(Options options, const Rank& rank, const ModelState& state);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();

  // Asynchronous: returns when the state is copied; the save before it is finished first. Else when it is durable.
  void save(const CheckpointSource& source);

  // Asynchronous: whether this rank has written all of the save that is not published yet. A fault of the background
  // is thrown here.
  bool written();
  // When all ranks have; others wait here for those that have not. Nothing if nothing is left to publish.
  void publish();
  // Returns when the last save is durable.
  void finish();

  std::uint64_t file_bytes() const { return file_.bytes(); }  // of this rank

 private:
  struct WirePiece {  // a piece as the first rank learns of it
    std::int64_t tensor, split, begin, end, from, to, offset;
  };

  bool first() const { return rank_.world.rank() == 0; }
  void list_files();
  std::vector<std::vector<WirePiece>> gather_pieces();
  std::uint32_t write_in_stretches(StreamFile& file);
  std::uint32_t write_copy(StreamFile& file) const;
  void copy_beside(Manifest& manifest) const;
  void publish_files();

  Options options_;
  Rank rank_;
  RankFile file_;
  std::span<std::byte> host_;
  Tensor numbers_;     // i64 [ranks], on the device
  Manifest manifest_;  // first rank only, as is the next; all but checksums is known from the start
  std::shared_ptr<CheckpointFolder> folder_;

  CheckpointSource source_;         // of the save at hand
  bool pending_ = false;            // it is not published
  std::atomic<bool> stop_ = false;  // give up: this rank fails anyway
  std::future<std::uint32_t> writing_;
  std::optional<std::uint32_t> checksum_;  // of what was written
  std::future<void> publishing_;
};

// The weights of a store that holds the whole model; returns the folder that was published.
std::filesystem::path save_checkpoint(const std::filesystem::path& root, const CheckpointSource& source,
                                      const ParamStore& params, Ops& ops, Device& device);

}  // namespace tera
