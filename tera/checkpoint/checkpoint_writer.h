#pragma once
// Saves sharded checkpoints, optionally asynchronously. Every rank writes its pieces to a file of its own; when all are
// on the disk, the first rank publishes them with one manifest.
//
//   all ranks      save():  copy to the host | write and sync ...          | publish(): gather checksums
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
    std::int64_t keep_last = 0;                           // 0: keeps all
    std::vector<std::filesystem::path> extra_files = {};  // small files to keep with the tensors, where they exist
    std::shared_ptr<CheckpointFolder> folder = {};        // handle of root, if the first rank has locked it already
    std::int64_t saved_step = -1;                         // the newest valid step in the folder, or negative
    // Called on the first rank, perhaps by another thread, when the checkpoint is durable under its final name.
    std::function<void(std::int64_t step, const std::filesystem::path& folder)> durable = {};
  };
  struct Rank {
    Comm& world;  // was made for `ops`
    Ops& ops;
    Device& device;  // for host memory: all that this rank writes if asynchronous, else a few megabytes
    Replicas replicas{};
  };
  CheckpointWriter(Options options, const Rank& rank, const ModelState& state);
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter();

  // Finishes the previous save first. Asynchronous: returns when the state is copied to the host; else when durable.
  void save(const CheckpointSource& source);

  // Asynchronous: whether this rank has written its file of the pending save. Errors of the background threads are
  // thrown here.
  bool written();
  // Publishes the pending save, if there is one; waits until all ranks have written their files.
  void publish();
  // Returns when the last save is durable.
  void finish();

  std::uint64_t file_bytes() const { return file_.bytes(); }  // size of this rank's file

 private:
  struct WirePiece {  // a piece as it is sent to the first rank
    std::int64_t tensor, split, begin, end, from, to, offset;
  };

  bool first() const { return rank_.world.rank() == 0; }
  void list_files();
  std::vector<std::vector<WirePiece>> gather_pieces();
  std::uint32_t write_in_chunks(StreamFile& file);
  std::uint32_t write_copy(StreamFile& file) const;
  void copy_extra_files(Manifest& manifest) const;
  void publish_files();

  Options options_;
  Rank rank_;
  RankFile file_;
  std::span<std::byte> host_;
  Tensor numbers_;     // i64 [ranks], on the device
  Manifest manifest_;  // first rank only; all but the checksums is known from the start
  std::shared_ptr<CheckpointFolder> folder_;

  CheckpointSource source_;         // source of the current save
  bool pending_ = false;            // the current save is not published
  std::atomic<bool> stop_ = false;  // stops the background write, because this rank fails
  std::future<std::uint32_t> writing_;
  std::optional<std::uint32_t> checksum_;  // checksum of the written file
  std::future<void> publishing_;
};

// Saves the weights of a store of the full model; returns the published folder.
std::filesystem::path save_checkpoint(const std::filesystem::path& root, const CheckpointSource& source,
                                      const ParamStore& params, Ops& ops, Device& device);

}  // namespace tera
