// tera import: a Hugging Face folder as a checkpoint.

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "apps/commands.h"
#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/config/checkpoint_path.h"
#include "tera/hf/hf_import.h"
#include "tera/infer/open_model.h"
#include "tera/setup/describe.h"

namespace tera {
namespace {

struct ImportOptions {
  std::string model, output;
};

void run_import(const ImportOptions& options) {
  const bool is_folder = std::filesystem::is_directory(options.model);
  require_user(!is_folder || holds_checkpoints(options.model) ||
                   path_exists(std::filesystem::path(options.model) / "config.json"),
               "--model {}: no Hugging Face folder: there is no config.json", options.model);
  const OpenModel model(options.model);
  require_user(model.hf() != nullptr, "--model {}: a checkpoint already; a Hugging Face folder is wanted",
               options.model);
  const Setup setup = model.setup({.device = DeviceChoice::cpu, .threads = 1, .overrides = {}}, {});
  model.hf()->check_copies();
  const std::filesystem::path folder = import_hf(*model.hf(), setup.model, resolved_yaml(setup), options.output);
  const auto is_double = [](const auto& tensor) { return tensor.second.dtype == DType::f64; };
  if (const auto doubles = std::ranges::count_if(model.hf()->tensors(), is_double); doubles > 0)
    fmt::print("{} of the tensors are F64 and were rounded to F32: no checkpoint holds F64\n", doubles);
  const auto is_scaled = [&](const auto& tensor) { return model.hf()->is_scaled(tensor.first); };
  if (const auto scaled = std::ranges::count_if(model.hf()->tensors(), is_scaled); scaled > 0)
    fmt::print("{} of the tensors are FP8 and became F32: value times scale\n", scaled);
  fmt::print("{}: {} tensors\n", folder.string(), model.hf()->tensors().size());
}

}  // namespace

void add_import_command(Command app) {
  auto options = std::make_shared<ImportOptions>();
  Command command = app.add_subcommand("import", "make a checkpoint of a Hugging Face folder");
  command.add_option("--model", options->model, "the Hugging Face folder").required().type_name("HF_DIR");
  command.add_option("--output", options->output, "folder of checkpoints to make").required().type_name("CKPT");
  command.callback([options] { run_import(*options); });
}

}  // namespace tera
