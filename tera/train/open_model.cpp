#include "tera/train/open_model.h"

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/checkpoint/hf_files.h"
#include "tera/checkpoint/hf_import.h"
#include "tera/config/load.h"
#include "tera/config/resolve.h"
#include "tera/tokenizer/make_tokenizer.h"
#include "tera/train/data_source.h"

namespace tera {

OpenModel::OpenModel(const std::filesystem::path& path) {
  if (is_hf_folder(path))
    hf_ = std::make_unique<HfFolder>(path);
  else
    checkpoint_ = std::make_unique<Checkpoint>(path);
}

namespace {

// The tokenizer's files are in the checkpoint, wherever they were when it was made.
void find_tokenizer(const Checkpoint& checkpoint, TokenizerConfig& tokenizer) {
  for (std::string* path : {&tokenizer.tokenizer_model, &tokenizer.vocab_file, &tokenizer.merge_file}) {
    const std::string name = std::filesystem::path(*path).filename().string();
    if (!path->empty() && checkpoint.has_file(name))
      *path = (checkpoint.folder() / name).string();
    else if (!path->empty() && checkpoint.has_file("tokenizer.json"))
      *path = checkpoint.folder().string();  // it was a folder
  }
}

}  // namespace

LoadedConfig OpenModel::config() const {
  if (checkpoint_) {
    LoadedConfig trained =
        load_config_text(checkpoint_->config_yaml(), (checkpoint_->folder() / "manifest.json").string());
    find_tokenizer(*checkpoint_, trained.config.tokenizer);
    return trained;
  }
  LoadedConfig loaded;
  loaded.config.model = hf_->model();
  loaded.config.model.hf = hf_->folder().string();
  loaded.config.train.seq_length = hf_->model().max_position_embeddings;
  loaded.config.tokenizer.tokenizer_type = TokenizerKind::hugging_face;
  loaded.config.tokenizer.tokenizer_model = hf_->folder().string();
  return loaded;
}

Setup OpenModel::setup(const Layout& layout, const Launch& launch) const {
  for (const std::string& assignment : layout.overrides)
    require_user(assignment.starts_with("dist."), "'{}': of the config only dist.key=value can be given here",
                 assignment);
  LoadedConfig loaded = config();
  loaded.config.dist = {.device = layout.device, .threads = layout.threads};
  loaded.config.ddp = {};
  loaded.config.comm_overlap = {};
  loaded.config.train.global_batch_size = 0;  // one microbatch, whatever the number of replicas was
  loaded.config.train.rampup_batch_size.clear();
  std::erase_if(loaded.origins, [](const auto& origin) { return origin.first.starts_with("dist."); });
  apply_overrides(loaded, layout.overrides);
  share_cores(loaded.config.dist, launch);
  Setup setup = resolve(loaded.config, Purpose::inspect, &loaded.origins, launch.world);
  require_user(setup.parallel.dp == 1,
               "{} ranks, but tensor x pipeline parallelism takes {}; give dist.tensor_model_parallel_size and "
               "dist.pipeline_model_parallel_size whose product is the number of ranks",
               launch.world, launch.world / setup.parallel.dp);
  if (hf_) check_tensors(*hf_, setup.model);
  return setup;
}

void OpenModel::load(ParamStore& params, Ops& ops, const ModelShape& model) const {
  if (hf_)
    load_weights(*hf_, params, ops);
  else
    checkpoint_->load_weights(params, ops, model);
}

// A Hugging Face tokenizer may know more ids than the model has rows; only such an id itself is a mistake.
std::unique_ptr<Tokenizer> OpenModel::tokenizer(const Setup& setup) const {
  return hf_ ? make_tokenizer(setup.config.tokenizer.options()) : make_tokenizer(setup);
}

std::vector<std::int32_t> OpenModel::stop_tokens(const Tokenizer& tokenizer) const {
  std::vector<std::int32_t> stop;
  const std::filesystem::path carried = hf_ ? hf_->folder() : carried_hf_files(*checkpoint_);
  if (!carried.empty()) stop = hf_stop_tokens(carried);
  if (stop.empty() && tokenizer.eod() >= 0) stop.push_back(tokenizer.eod());
  return stop;
}

}  // namespace tera
