#include "tera/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <array>

#include "tera/base/checksum.h"
#include "tera/base/error.h"
#include "tera/comm/agree.h"

namespace tera {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_extra_bytes = std::size_t{1} << 30, wire_bytes = std::size_t{4} << 20;

template <class T>
bool is_ready(const std::future<T>& future) {
  return future.valid() && future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

Tensor on_device(std::span<std::byte> memory, std::size_t numbers) {
  return make_tensor(memory.data(), shape(static_cast<std::int64_t>(numbers)), DType::i64);
}

}  // namespace

CheckpointWriter::CheckpointWriter(Options options, const Rank& rank, const ModelState& state)
    : options_(std::move(options)), rank_(rank), file_(state.tensors(), state.written(rank.replicas)) {
  const auto ranks = static_cast<std::size_t>(rank_.world.size());
  numbers_ = on_device(rank_.device.allocate(ranks * sizeof(std::int64_t)), ranks);
  host_ = rank_.device.allocate_host(options_.async ? file_.bytes() : 2 * StreamFile::chunk_bytes);
  if (first()) {
    folder_ = options_.folder ? options_.folder : std::make_shared<CheckpointFolder>(options_.root);
    folder_->recover();
    if (options_.saved_step >= 0) folder_->remove_older(options_.saved_step, options_.keep_last);
    for (const StateTensor& tensor : state.tensors())
      manifest_.tensors[tensor.name] = {.dtype = tensor.dtype, .shape = tensor.shape, .pieces = {}};
  }
  const std::vector<std::vector<WirePiece>> all = gather_pieces();
  for (std::size_t i = 0; i < all.size(); ++i) {
    manifest_.files.push_back({.name = RankFile::name(static_cast<int>(i))});
    for (const WirePiece& piece : all[i])
      manifest_.tensors[state.tensors()[static_cast<std::size_t>(piece.tensor)].name].pieces.push_back(
          {.file = i,
           .offset = static_cast<std::uint64_t>(piece.offset),
           .slice = {piece.split, piece.begin, piece.end, piece.from, piece.to}});
  }
  list_files();
}

// After a failure of this or another rank, the unfinished checkpoint is abandoned.
CheckpointWriter::~CheckpointWriter() {
  stop_ = true;
  if (writing_.valid()) writing_.wait();
  if (publishing_.valid()) publishing_.wait();
  if (pending_ && folder_) folder_->abandon(source_.step);
}

// Gathers the sizes of all files, and checks before the first save that every element is written exactly once.
void CheckpointWriter::list_files() {
  const std::vector<std::int64_t> bytes =
      gather_numbers(rank_.world, rank_.ops, numbers_, static_cast<std::int64_t>(file_.bytes()));
  for (std::size_t i = 0; i < manifest_.files.size(); ++i)
    manifest_.files[i].bytes = static_cast<std::uint64_t>(bytes[i]);
  for (const auto& [name, tensor] : manifest_.tensors) {
    std::vector<TensorSlice> slices;
    for (const ManifestPiece& piece : tensor.pieces) slices.push_back(piece.slice);
    const std::string problem = why_not_a_cover(std::move(slices), tensor.shape);
    if (!problem.empty()) fail("what the ranks would save of '{}' is not the whole tensor: {}", name, problem);
  }
}

// Gathers the pieces of all ranks on the first rank, by rank; other ranks get nothing.
std::vector<std::vector<CheckpointWriter::WirePiece>> CheckpointWriter::gather_pieces() {
  std::vector<WirePiece> local;
  for (std::size_t i = 0; i < file_.pieces().size(); ++i) {
    const StatePiece& piece = file_.pieces()[i];
    const TensorSlice& slice = piece.slice;
    local.push_back({static_cast<std::int64_t>(piece.tensor), slice.split, slice.begin, slice.end, slice.from, slice.to,
                     static_cast<std::int64_t>(file_.offset(i))});
  }
  const std::vector<std::int64_t> counts =
      gather_numbers(rank_.world, rank_.ops, numbers_, static_cast<std::int64_t>(local.size()));
  std::vector<std::vector<WirePiece>> all;
  if (first()) all.push_back(local);
  if (rank_.world.size() == 1) return all;

  constexpr std::size_t at_a_time = wire_bytes / sizeof(WirePiece), fields = sizeof(WirePiece) / sizeof(std::int64_t);
  const std::span<std::byte> buffer = rank_.device.allocate(wire_bytes);
  const auto transfer = [&](std::span<WirePiece> pieces, int peer, bool send) {
    for (std::size_t begin = 0; begin < pieces.size(); begin += at_a_time) {
      const auto some = pieces.subspan(begin, std::min(at_a_time, pieces.size() - begin));
      const Tensor wire = on_device(buffer, some.size() * fields);
      if (send) rank_.ops.from_host(std::as_bytes(some), wire);
      const Ticket sent = rank_.world.exchange(std::array{Transfer{wire, peer, send}}, rank_.ops.record());
      rank_.ops.wait(sent);
      if (send) rank_.ops.finish(sent);
      if (!send) rank_.ops.to_host(wire, std::as_writable_bytes(some));
    }
  };
  if (!first()) transfer(local, 0, true);
  for (int rank = 1; first() && rank < rank_.world.size(); ++rank)
    transfer(all.emplace_back(static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)])), rank, false);
  return all;
}

void CheckpointWriter::save(const CheckpointSource& source) {
  finish();
  source_ = source;
  checksum_.reset();
  if (first()) {
    manifest_.source = source;
    std::uint64_t bytes =
        format_manifest(manifest_).size();  // throws before anything is written if the manifest is invalid
    for (const ManifestFile& file : manifest_.files) bytes += file.bytes;
    folder_->check_free_space(source.step, bytes);
    folder_->begin(source.step);
  }
  pending_ = true;
  rank_.world.barrier();  // begin() has made the folder
  const fs::path path = CheckpointFolder::in_progress(options_.root, source.step) / RankFile::name(rank_.world.rank());
  if (!options_.async) {
    StreamFile file(path, file_.bytes());
    checksum_ = write_in_chunks(file);
    return finish();
  }
  file_.copy(rank_.ops, 0, host_);
  writing_ = std::async(std::launch::async, [this, path] {  // even the allocation of a large file is slow
    StreamFile file(path, file_.bytes());
    return write_copy(file);
  });
}

std::uint32_t CheckpointWriter::write_in_chunks(StreamFile& file) {
  return file.write([&](std::uint64_t begin, std::size_t bytes) -> std::span<const std::byte> {
    const std::size_t half = begin / StreamFile::chunk_bytes % 2;
    const std::span<std::byte> host = host_.subspan(half * StreamFile::chunk_bytes, bytes);
    file_.copy(rank_.ops, begin, host);
    return host;
  });
}

std::uint32_t CheckpointWriter::write_copy(StreamFile& file) const {
  return file.write([&](std::uint64_t begin, std::size_t bytes) -> std::span<const std::byte> {
    require(!stop_, "the run failed while a checkpoint was written");
    return host_.subspan(begin, bytes);
  });
}

bool CheckpointWriter::written() {
  if (is_ready(publishing_)) publishing_.get();
  if (is_ready(writing_)) checksum_ = writing_.get();
  return pending_ && checksum_.has_value();
}

void CheckpointWriter::publish() {
  if (!pending_) return;
  if (writing_.valid()) checksum_ = writing_.get();
  const std::vector<std::int64_t> checksums =
      gather_numbers(rank_.world, rank_.ops, numbers_, static_cast<std::int64_t>(*checksum_));
  if (first()) {
    for (std::size_t i = 0; i < checksums.size(); ++i)
      manifest_.files[i].crc32c = static_cast<std::uint32_t>(checksums[i]);
    if (options_.async)
      publishing_ = std::async(std::launch::async, [this] { publish_files(); });
    else
      publish_files();
  }
  pending_ = false;
}

void CheckpointWriter::finish() {
  publish();
  if (publishing_.valid()) publishing_.get();
}

void CheckpointWriter::publish_files() {
  try {
    Manifest manifest = manifest_;
    copy_extra_files(manifest);
    folder_->publish(source_.step, format_manifest(manifest), options_.keep_last);
  } catch (...) {
    folder_->abandon(source_.step);
    throw;
  }
  if (options_.durable) options_.durable(source_.step, CheckpointFolder::complete(options_.root, source_.step));
}

fs::path save_checkpoint(const fs::path& root, const CheckpointSource& source, const ParamStore& params, Ops& ops,
                         Device& device) {
  const std::unique_ptr<Comm> self = make_self_comm(ops);
  CheckpointWriter writer({.root = root}, {.world = *self, .ops = ops, .device = device},
                          ModelState(list_tensors(params), params));
  writer.save(source);
  return CheckpointFolder::complete(root, source.step);
}

// A file that was removed since the run began is skipped.
void CheckpointWriter::copy_extra_files(Manifest& manifest) const {
  for (const fs::path& from : options_.extra_files) {
    if (!path_exists(from)) continue;
    const std::string content = read_whole_file(from, max_extra_bytes), name = from.filename().string();
    write_file_atomically(CheckpointFolder::in_progress(options_.root, source_.step) / name, content);
    manifest.files.push_back({name, content.size(), crc32c(std::as_bytes(std::span(content)))});
  }
}

}  // namespace tera
