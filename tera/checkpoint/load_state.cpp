// Loads the state of a rank from a checkpoint, after checks that it is a checkpoint of this model.

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "tera/base/error.h"
#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/checkpoint_search.h"
#include "tera/checkpoint/file_pass.h"
#include "tera/ops/ops.h"

namespace tera {
namespace {

constexpr std::int64_t elements_per_piece = std::int64_t{2} << 20;
constexpr std::size_t prefetch_depth = 8;
constexpr std::string_view master_prefix = "optimizer.master.", optimizer_prefix = "optimizer.",
                           padding_suffix = ".vocab_padding";

// "'a', 'b', 'c' and 12 more".
std::string some_of(const std::vector<std::string_view>& names) {
  constexpr std::size_t shown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), shown); ++i)
    text += fmt::format("{}'{:.200}'", i == 0 ? "" : ", ", names[i]);
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// How many layers the names speak of: "model.layers.11.mlp..." means at least 12.
std::int64_t count_layers(std::string_view name, std::int64_t at_least) {
  for (const std::string_view before : {"model.layers.", "transformer.h."}) {
    if (!name.starts_with(before)) continue;
    std::int64_t layer = -1;
    std::from_chars(name.data() + before.size(), name.data() + name.size(), layer);
    return std::max(at_least, layer + 1);
  }
  return at_least;
}

// For a tensor of a layer: the name of the tensor that this layer has if and only if it is an MTP layer; else empty.
std::string mtp_mark_of(std::string_view name) {
  for (const std::string_view before : {"model.layers.", "transformer.h."})
    if (const std::size_t end = name.find('.', before.size()); name.starts_with(before) && end != name.npos)
      return fmt::format("{}.enorm.weight", name.substr(0, end));
  return {};
}
bool is_mtp_mark(std::string_view name) { return name == mtp_mark_of(name); }

bool is_optimizers(std::string_view name) { return name.starts_with(optimizer_prefix); }

// Advice for messages: taking weights alone needs checkpoint.load, and a checkpoint.save of its own.
std::string how_to_take_weights(const Checkpoint& checkpoint) {
  return fmt::format(
      "checkpoint.load={} and checkpoint.finetune=true, with a checkpoint.save of its own, take the weights alone",
      checkpoint.folder().string());
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelState& state, Checkpoint::Take take)
      : checkpoint_(checkpoint),
        state_(state),
        take_(take),
        where_((checkpoint.folder() / CheckpointNames::manifest).string()),
        reader_(checkpoint) {
    for (const StateTensor& tensor : state.tensors()) sources_.push_back(source_of(tensor));
  }

  // Checks all tensors of the model, not only those of this rank, so that every rank reports the same error.
  void check() const {
    std::vector<std::string_view> missing, missing_state, extra, extra_state;
    std::set<std::string_view> known;
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      const StateTensor& tensor = state_.tensors()[i];
      known.insert(tensor.name);
      if (is_loaded(tensor) && sources_[i].empty() && !model(tensor).padding && !begins_anew(model(tensor).name))
        (is_optimizers(tensor.name) ? missing_state : missing).push_back(tensor.name);
    }
    for (const auto& tensor : checkpoint_.manifest().tensors) {
      const std::string_view name = tensor.first;
      if (known.contains(name) || name.starts_with(master_prefix) || name.ends_with(padding_suffix)) continue;
      if (!is_optimizers(name) && !is_left_out(name)) extra.push_back(name);
      if (is_optimizers(name) && take_ == Checkpoint::Take::everything) extra_state.push_back(name);
    }
    if (!missing.empty())
      throw ModelMismatch({where_, fmt::format("it has no tensor {}", some_of(missing)), describe_difference()});
    if (!extra.empty())
      throw ModelMismatch({where_,
                           fmt::format("{} {} of this model", some_of(extra),
                                       extra.size() == 1 ? "is not a tensor" : "are not tensors"),
                           describe_difference()});
    check_shapes();
    if (missing_state.empty() && extra_state.empty()) return;
    fail_user(
        "{} {} {}: it was made with another optimizer, with another choice about global_aux_loss, or with other "
        "weights frozen; {} and start anew",
        where_, missing_state.empty() ? "has the state" : "lacks",
        some_of(missing_state.empty() ? extra_state : missing_state), how_to_take_weights(checkpoint_));
  }

  // Loads in one pass over the files; pieces that are not contiguous in memory are then read slice by slice.
  void load(Ops& ops, const std::optional<VerifyShard>& verified) {
    FilePass pass(checkpoint_);
    if (verified) pass.verify(*verified);
    std::vector<Read> rest;
    for (const StatePiece& kept : state_.kept()) {
      const StateTensor& tensor = state_.tensors()[kept.tensor];
      const std::string& source = sources_[kept.tensor];
      if (!is_loaded(tensor) || source.empty()) continue;
      const StatePiece piece = model(tensor).padding ? cut_padding(kept, source) : kept;
      const bool stored_transposed = checkpoint_.manifest().version == 1 && model(tensor).transposed;
      if (piece.slice.from < piece.slice.to && (stored_transposed || !pass.add(*checkpoint_.find(source), piece)))
        add_reads(rest, piece, source);
    }
    pass.run(&ops);
    read(rest, ops);
  }

 private:
  const ModelTensor& model(const StateTensor& tensor) const { return state_.weights()[tensor.weight]; }
  bool is_loaded(const StateTensor& tensor) const {
    return take_ == Checkpoint::Take::everything || !is_optimizers(tensor.name) ||
           tensor.name.starts_with(master_prefix);
  }

  // Weights alone may be loaded from a model with fewer or more MTP layers; missing ones keep their initial values.
  bool begins_anew(const std::string& weight) const {
    const std::string mark = mtp_mark_of(weight);
    return take_ == Checkpoint::Take::weights && has_weight(mark) && !checkpoint_.find(mark);
  }
  bool is_left_out(std::string_view stored) const {
    const std::string mark = mtp_mark_of(stored);
    return take_ == Checkpoint::Take::weights && !mark.empty() && checkpoint_.find(mark) && !has_weight(mark);
  }
  bool has_weight(const std::string& name) const {
    return std::ranges::binary_search(state_.weights(), name, {}, &ModelTensor::name);
  }

  struct Read {
    const std::string* source;
    TensorSlice slice;
    Tensor to;
    bool transposed;
  };
  void add_reads(std::vector<Read>& reads, const StatePiece& piece, const std::string& source) const {
    const TensorSlice& all = piece.slice;
    for (std::int64_t from = all.from; from < all.to; from += elements_per_piece) {
      TensorSlice some = all;
      some.from = from;
      some.to = std::min(from + elements_per_piece, all.to);
      const Tensor to = piece.data.rows(some.from - all.from, some.to - all.from);
      reads.push_back({&source, some, to, model(state_.tensors()[piece.tensor]).transposed});
    }
  }
  void read(const std::vector<Read>& reads, Ops& ops) {
    std::vector<std::byte> host;
    for (std::size_t i = 0, prefetched = 0; i < reads.size(); ++i) {
      // Several reads are prefetched to keep the disk busy.
      for (; prefetched < std::min(i + prefetch_depth, reads.size()); ++prefetched)
        reader_.prefetch(*reads[prefetched].source, reads[prefetched].slice);
      const auto& [source, slice, to, transposed] = reads[i];
      host.resize(to.bytes());
      reader_.read(*source, slice, to.dtype, host, transposed);
      ops.from_host(host, to);
    }
  }

  // A weight can be loaded from its master copy and the reverse; the one with the same dtype is exact, else the master
  // is more precise.
  std::string source_of(const StateTensor& tensor) const {
    const std::string &weight = model(tensor).name, master = std::string(master_prefix) + weight;
    const bool is_master = tensor.name == master;
    if (is_optimizers(tensor.name) && !is_master) return checkpoint_.find(tensor.name) ? tensor.name : std::string();
    const ManifestTensor* stored = checkpoint_.find(weight);
    if (checkpoint_.find(master) && (is_master || !stored || stored->dtype != tensor.dtype)) return master;
    return stored ? weight : std::string();
  }

  std::string describe_difference() const {
    std::int64_t stored = 0, wanted = 0;
    for (const auto& tensor : checkpoint_.manifest().tensors) stored = count_layers(tensor.first, stored);
    for (const ModelTensor& tensor : state_.weights()) wanted = count_layers(tensor.name, wanted);
    const auto mtp_stored = std::ranges::count_if(checkpoint_.manifest().tensors,
                                                  [](const auto&tensor) { return is_mtp_mark(tensor.first); }),
               mtp_wanted = std::ranges::count_if(state_.weights(), is_mtp_mark, &ModelTensor::name);
    if (mtp_stored != mtp_wanted && take_ == Checkpoint::Take::everything)  // weights alone allow other MTP layers
      return fmt::format(
          "the checkpoint was made with model.mtp_num_layers={}, and the config has {}; {}, with or without these "
          "layers",
          mtp_stored, mtp_wanted, how_to_take_weights(checkpoint_));
    if (stored == wanted) return "it is of another model than the config describes";
    return fmt::format("the checkpoint has {} layer{}, and the config {}", stored, stored == 1 ? "" : "s", wanted);
  }

  // Explains a wrong shape; for the embedding table and the head by the size of the vocabulary.
  std::string describe_shape(const std::string& name, const Shape& stored, const Shape& needed) const {
    const bool is_table =
        name.ends_with("embed_tokens.weight") || name.ends_with("wte.weight") || name.ends_with("lm_head.weight");
    if (!is_table || stored.rank != 2 || needed.rank != 2 || stored[1] != needed[1]) return describe_difference();
    return fmt::format("the vocabulary is {} in the checkpoint, and {} by the config or its tokenizer", stored[0],
                       needed[0]);
  }

  void check_shapes() const {
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      const StateTensor& tensor = state_.tensors()[i];
      if (sources_[i].empty() || !is_loaded(tensor) || model(tensor).padding) continue;
      const ManifestTensor& stored = *checkpoint_.find(sources_[i]);
      const bool stored_transposed = checkpoint_.manifest().version == 1 && model(tensor).transposed;
      const Shape needed = stored_transposed ? shape(tensor.shape[1], tensor.shape[0]) : tensor.shape;
      if (stored.shape != needed)
        throw ModelMismatch(
            {where_,
             fmt::format("'{}' is {}, the model needs {}", sources_[i], to_string(stored.shape), to_string(needed)),
             describe_shape(sources_[i], stored.shape, needed)});
      require_user(is_float(stored.dtype), "{}: '{}' holds {}, not floats", where_, sources_[i], name_of(stored.dtype));
    }
  }

  // Drops padding rows that the checkpoint lacks; they keep their initial values.
  StatePiece cut_padding(StatePiece piece, const std::string& source) const {
    const Shape& stored = checkpoint_.find(source)->shape;
    TensorSlice& slice = piece.slice;
    const std::int64_t columns = stored.rank == 2 ? stored[1] : 1, all = slice.elements();
    const std::int64_t rows = std::clamp<std::int64_t>(stored[0] - slice.begin, 0, slice.end - slice.begin);
    slice.end = slice.begin + rows;
    slice.to = std::max(slice.from, std::min(slice.to, rows * columns));
    if (slice.elements() < all) piece.data = piece.data.rows(0, slice.elements());
    return piece;
  }

  const Checkpoint& checkpoint_;
  const ModelState& state_;
  Checkpoint::Take take_;
  std::string where_;
  CheckpointReader reader_;
  std::vector<std::string> sources_;  // name in the checkpoint, by tensor of the state; empty: not stored
};

}  // namespace

ModelMismatch::ModelMismatch(Message message)
    : UserError(fmt::format("{}: {}; {}", message.where, message.tensors, message.guess)),
      message_(std::move(message)) {}

std::string ModelMismatch::with(const std::string& difference) const {
  return fmt::format("{}: {}; {}", message_.where, difference, message_.tensors);
}

void Checkpoint::load(const ModelState& state, Take take, Ops& ops, const std::optional<VerifyShard>& verified) const {
  require_user(take == Take::weights || manifest_.version != 1,
               "{} has weights alone (a checkpoint of format version 1), and a run cannot go on from it; {}",
               (folder_ / CheckpointNames::manifest).string(), how_to_take_weights(*this));
  Loader loader(*this, state, take);
  loader.check();
  loader.load(ops, verified);
  if (verified) check_headers(*verified);
}

void Checkpoint::load_weights(ParamStore& params, Ops& ops) const {
  load(ModelState(list_tensors(params), params), Take::weights, ops);
}

}  // namespace tera
