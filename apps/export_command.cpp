// tera export: a checkpoint as a folder that transformers loads.

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <memory>
#include <string>

#include "apps/choice.h"
#include "apps/commands.h"
#include "tera/base/error.h"
#include "tera/checkpoint/checkpoint_weights.h"
#include "tera/config/family.h"
#include "tera/hf/hf_export.h"
#include "tera/infer/open_model.h"
#include "tera/plan/memory_plan.h"
#include "tera/train/export_tokenizer.h"

namespace tera {
namespace {

enum class ExportDType : std::uint8_t { stored, bf16, fp32 };

}  // namespace

template <>
struct EnumNames<ExportDType> {
  static constexpr std::array values{std::pair{ExportDType::bf16, std::string_view("bf16")},
                                     std::pair{ExportDType::fp32, std::string_view("fp32")},
                                     std::pair{ExportDType::stored, std::string_view("stored")}};
};

namespace {

struct ExportOptions {
  std::string model, output, dtype = "stored", max_shard_size = "5GB";
};

struct Unit {
  std::string_view name;
  double bytes;
};

// "5GB", "500MB", "2GiB", or bytes.
std::uint64_t parse_size(const std::string& text) {
  constexpr std::array units{Unit{"", 1},         Unit{"B", 1},       Unit{"KB", 1e3},     Unit{"MB", 1e6},
                             Unit{"GB", 1e9},     Unit{"TB", 1e12},   Unit{"KiB", 0x1p10}, Unit{"MiB", 0x1p20},
                             Unit{"GiB", 0x1p30}, Unit{"TiB", 0x1p40}};
  double value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const auto unit = std::find_if(units.begin(), units.end(), [&](const Unit& each) { return each.name == suffix; });
  const bool good = error == std::errc{} && unit != units.end() && value > 0 && value * unit->bytes <= 0x1p60;
  require_user(good && value * unit->bytes >= 1, "--max-shard-size {}: write it as 5GB, 500MB or 2GiB", text);
  return static_cast<std::uint64_t>(value * unit->bytes);
}

HfExportOptions parse_options(const ExportOptions& options) {
  HfExportOptions out{.dtype = {}, .max_shard_bytes = parse_size(options.max_shard_size)};
  switch (parse_choice<ExportDType>("--dtype", options.dtype)) {
    case ExportDType::stored: break;
    case ExportDType::bf16: out.dtype = DType::bf16; break;
    case ExportDType::fp32: out.dtype = DType::f32; break;
  }
  return out;
}

// The run's own tokenizer replaces the one that came with the model. Without its files the weights are exported all the
// same.
void add_tokenizer(const OpenModel& model, const Setup& setup, HfExportOptions& wanted) {
  ExportedTokenizer exported;
  try {
    exported = export_tokenizer(setup, *model.tokenizer(setup));
  } catch (const UserError& error) {
    exported.remark = fmt::format("no tokenizer goes along: {}", error.what());
  }
  if (!exported.remark.empty()) fmt::print("{}\n", exported.remark);
  if (wanted.carried.has("config.json"))
    fmt::print("the model was trained with another tokenizer than it came with: of that one nothing goes along\n");
  wanted.tokenizer = std::move(exported.files);
}

HfExportResult export_checkpoint(const OpenModel& model, const Setup& setup, const std::string& output,
                                 HfExportOptions& wanted) {
  const Checkpoint& checkpoint = *model.checkpoint();
  checkpoint.verify();
  if (model.has_custom_tokenizer()) add_tokenizer(model, setup, wanted);
  const bool masters = wanted.dtype == DType::f32;
  return export_hf(CheckpointWeights(checkpoint, setup.model, masters), setup.model, output, wanted);
}

void run_export(const ExportOptions& options) {
  HfExportOptions wanted = parse_options(options);
  const OpenModel model(options.model);
  const Setup setup = model.setup({.device = DeviceChoice::cpu, .threads = 1, .overrides = {}}, {});
  wanted.carried = model.carried();
  wanted.written = &setup.config.model;
  if (setup.model.mtp_layers > 0 && !keeps_mtp_layers(*setup.model.family))
    fmt::print("the layers of model.mtp_num_layers={} are left out: a folder of a {} has no place for them\n",
               setup.model.mtp_layers, setup.model.family->name);
  if (adds_expert_bias(setup.model))
    fmt::print("model.moe.router_enable_expert_bias=false: a folder of a {} has biases of experts; they are zeros\n",
               setup.model.family->name);
  if (model.hf() != nullptr) model.hf()->check_copies();
  const HfExportResult result = model.hf() != nullptr ? export_hf(*model.hf(), setup.model, options.output, wanted)
                                                      : export_checkpoint(model, setup, options.output, wanted);
  fmt::print("{}: {} tensors, {}, in {} file{}\n", options.output, result.tensors,
             format_bytes(static_cast<std::size_t>(result.bytes)), result.files, result.files == 1 ? "" : "s");
}

}  // namespace

void add_export_command(Command app) {
  auto options = std::make_shared<ExportOptions>();
  Command command = app.add_subcommand("export", "write a checkpoint as a Hugging Face folder");
  command
      .add_option("--model,--load", options->model, "a checkpoint, a folder of checkpoints, or a Hugging Face folder")
      .required()
      .type_name("DIR");
  command.add_option("--output", options->output, "folder to make").required().type_name("DIR");
  command
      .add_option("--dtype", options->dtype,
                  "of all tensors: bf16, fp32 (master weights where there are any), or as stored")
      .capture_default_str();
  command.add_option("--max-shard-size", options->max_shard_size, "of a file, as in 5GB, 500MB or 2GiB")
      .capture_default_str();
  command.callback([options] { run_export(*options); });
}

}  // namespace tera
