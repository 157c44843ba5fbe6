#include "tera/infer/open_model.h"

#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/config/checkpoint_path.h"
#include "tera/hf/config/hf_tokenizer.h"
#include "tera/setup/load.h"
#include "tera/setup/resolve.h"
#include "tera/tokenizer/make_tokenizer.h"
#include "tera/train/data_source.h"
#include "tera/train/stored_run.h"

namespace tera {

OpenModel::OpenModel(const std::filesystem::path& path, Families families)
    : families_(families.begin(), families.end()) {
  if (is_hf_folder(path)) {
    hf_ = std::make_unique<HfFolder>(path, families_);
    return;
  }
  const std::string why = why_no_checkpoint(path);
  require_user(why.empty(), "{}: {}", path.string(), why);
  checkpoint_ = std::make_unique<Checkpoint>(path);
}

LoadedConfig OpenModel::config() const {
  if (checkpoint_) return stored_config(*checkpoint_, families_);
  LoadedConfig loaded;
  loaded.config.model = hf_->model();
  loaded.config.model.hf = hf_->folder().string();
  loaded.config.train.seq_length = hf_->model().max_position_embeddings;
  if (const auto tokenizer = find_hf_tokenizer(hf_->folder(), *hf_->model().arch)) loaded.config.tokenizer = *tokenizer;
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
  apply_overrides(loaded, layout.overrides, families_);
  share_cores(loaded.config.dist, launch);
  Setup setup = resolve(loaded.config, Purpose::inspect, &loaded.origins, launch.world);
  require_user(setup.parallel.mesh.cp == 1,
               "dist.context_parallel_size={}: sequences are shared by ranks in training alone; give 1",
               setup.parallel.mesh.cp);
  require_user(setup.parallel.dp == 1,
               "{} ranks, but tensor x pipeline parallelism takes {}; give dist.tensor_model_parallel_size and "
               "dist.pipeline_model_parallel_size whose product is the number of ranks",
               launch.world, launch.world / setup.parallel.dp);
  if (hf_) check_tensors(*hf_, setup.model);
  return setup;
}

void OpenModel::load(ParamStore& params, Ops& ops, const ModelShape& model,
                     const std::optional<VerifyShard>& verified) const {
  if (hf_)
    load_weights(*hf_, params, ops);
  else
    checkpoint_->load(ModelState(list_tensors(model), params), Checkpoint::Take::weights, ops, verified);
}

HfFiles OpenModel::carried() const { return hf_ ? HfFiles(hf_->folder()) : HfFiles(*checkpoint_); }

bool OpenModel::has_custom_tokenizer() const {
  return checkpoint_ && uses_custom_tokenizer(written_config(*checkpoint_, families_).config);
}

// A Hugging Face tokenizer may know more ids than the model has rows; only such an id itself is a mistake.
std::unique_ptr<Tokenizer> OpenModel::tokenizer(const Setup& setup) const {
  const bool bytes = setup.config.tokenizer.tokenizer_type == TokenizerKind::byte;
  if (hf_ && bytes) fail_user("{}", why_no_hf_tokenizer(hf_->folder()));
  if (!hf_ && bytes && !has_custom_tokenizer())
    fail_user("{}: it has no tokenizer, and {} had none", checkpoint_->folder().string(), setup.config.model.hf);
  if (!hf_) return make_tokenizer(setup);
  return make_tokenizer(setup.config.tokenizer.options());
}

std::int32_t OpenModel::first_token(const Tokenizer& tokenizer) const {
  const std::int32_t listed = has_custom_tokenizer() ? -1 : hf_first_token(carried());
  if (listed >= 0) return listed;
  return tokenizer.bos() >= 0 ? tokenizer.bos() : tokenizer.eod();
}

std::vector<std::int32_t> OpenModel::stop_tokens(const Tokenizer& tokenizer) const {
  std::vector<std::int32_t> stop;
  if (!has_custom_tokenizer()) stop = hf_stop_tokens(carried());
  if (stop.empty() && tokenizer.eod() >= 0) stop.push_back(tokenizer.eod());
  return stop;
}

}  // namespace tera
