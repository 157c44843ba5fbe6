// tera dataset: the samples that a run would see, in its order, as lines of JSON.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/choice.h"
#include "apps/commands.h"
#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/joined.h"
#include "tera/setup/resolve.h"
#include "tera/train/data_source.h"
#include "tera/train/stored_run.h"

namespace tera {
namespace {

enum class SampleField : std::uint8_t { tokens, labels, loss_mask, position_ids };

}  // namespace

template <>
struct EnumNames<SampleField> {
  static constexpr std::array values{std::pair{SampleField::tokens, std::string_view("tokens")},
                                     std::pair{SampleField::labels, std::string_view("labels")},
                                     std::pair{SampleField::loss_mask, std::string_view("loss_mask")},
                                     std::pair{SampleField::position_ids, std::string_view("position_ids")}};
};

namespace {

constexpr std::int64_t no_end = std::numeric_limits<std::int64_t>::max();

struct DatasetOptions {
  std::string file;
  std::vector<std::string> overrides;
  std::string split = "train", samples, fields = "tokens";
};

struct SampleRange {
  std::int64_t begin = 0, end = no_end;
};

std::int64_t parse_bound(const std::string& range, std::string_view text, std::int64_t absent) {
  if (text.empty()) return absent;
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require_user(error == std::errc{} && stop == text.data() + text.size() && value >= 0,
               "--samples {}: must be A:B, the first sample and the one after the last", range);
  return value;
}

SampleRange parse_range(const std::string& text) {
  if (text.empty()) return {};
  const std::size_t colon = text.find(':');
  require_user(colon != std::string::npos, "--samples {}: must be A:B, the first sample and the one after the last",
               text);
  const std::string_view view(text);
  const SampleRange range{parse_bound(text, view.substr(0, colon), 0),
                          parse_bound(text, view.substr(colon + 1), no_end)};
  require_user(range.begin <= range.end, "--samples {}: the first sample comes after the last", text);
  require_user(range.begin < range.end, "--samples {}: an empty range; B is the sample after the last, {}:{} is one",
               text, range.begin, range.begin + 1);
  return range;
}

std::vector<SampleField> parse_fields(const std::string& text) {
  std::vector<SampleField> fields;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    fields.push_back(parse_choice<SampleField>("--fields", text.substr(begin, comma - begin)));
    begin = comma + 1;
  }
  return fields;
}

// Prints one sample at a time, as the batches of a run contain it.
class SamplePrinter {
 public:
  SamplePrinter(const Setup& setup, const BatchSource& source, const Tokenizer& tokenizer)
      : source_(source),
        pad_(batch_options(setup, &tokenizer).pad),
        drawn_(setup.config.dataset.add_extra_token_to_sequence ? 1 : 0),
        loader_(source, one_sample(setup, tokenizer)),
        row_ids_(static_cast<std::size_t>(setup.batch.seq_length)) {
    for (auto* ids : {&tokens_, &targets_, &positions_, &labels_, &mask_}) ids->resize(row_ids_.size());
    drawn_ += row_ids_.size();
    ids_.resize(row_ids_.size() + 1);
  }

  void print(std::int64_t index, const std::vector<SampleField>& fields, std::string& out) {
    source_.dataset->sample(source_.sampler ? source_.sampler->at(index) : index, ids_);
    loader_.fill(index, 0, {tokens_, targets_, positions_, row_ids_});
    for (std::size_t i = 0; i < labels_.size(); ++i) {
      const std::int32_t next = ids_[i + 1];
      labels_[i] = next < 0 || next == pad_ ? 0 : next;
      mask_[i] = targets_[i] >= 0 ? 1 : 0;
    }
    fmt::format_to(std::back_inserter(out), "{{\"index\":{}", index);
    for (const SampleField field : fields)
      fmt::format_to(std::back_inserter(out), ",\"{}\":[{}]", name_of(field), joined(values_of(field), ","));
    out += "}\n";
  }

 private:
  static BatchOptions one_sample(const Setup& setup, const Tokenizer& tokenizer) {
    BatchOptions options = batch_options(setup, &tokenizer);
    options.mtp_depths = 0;
    options.micro_batch_size = options.global_batch_size = 1;
    options.reset_attention_mask = false;  // it does not affect the printed fields
    return options;
  }
  std::span<const std::int32_t> values_of(SampleField field) const {
    switch (field) {
      case SampleField::tokens: return std::span(ids_).first(drawn_);
      case SampleField::labels: return labels_;
      case SampleField::loss_mask: return mask_;
      case SampleField::position_ids: return positions_;
    }
    fail("a field that does not exist");
  }

  BatchSource source_;
  std::int32_t pad_;
  std::size_t drawn_;  // ids of a sample
  BatchLoader loader_;
  std::vector<std::int64_t> row_ids_;
  std::vector<std::int32_t> ids_, tokens_, targets_, positions_, labels_, mask_;
};

void print_samples(const DatasetOptions& options) {
  constexpr std::size_t chunk = std::size_t{1} << 16;
  const auto split = parse_choice<DataSplit>("--split", options.split);
  const auto fields = parse_fields(options.fields);
  SampleRange range = parse_range(options.samples);
  const LoadedConfig loaded = load_config(options.file, options.overrides, find_stored_run);
  const Setup setup = resolve(loaded.config, Purpose::inspect, &loaded.origins, smallest_world(loaded.config));
  const auto dataset = make_split(setup, split);
  require_user(dataset && dataset->samples() > 0, "--split {}: this split has no samples", name_of(split));
  require_user(range.begin < dataset->samples(), "--samples {} is beyond the end: the {} split has {} samples",
               options.samples, name_of(split), dataset->samples());
  range.end = std::min(range.end, dataset->samples());
  require_user(range.end != no_end, "mock data has no end; say which samples: --samples A:B");
  const auto tokenizer = make_tokenizer(setup);
  std::optional<CyclicSampler> sampler;
  if (split == DataSplit::train && setup.config.dataset.dataloader_type == DataloaderType::cyclic)
    sampler.emplace(cyclic_options(setup, *dataset));
  SamplePrinter printer(setup, {dataset.get(), sampler ? &*sampler : nullptr}, *tokenizer);
  std::string out;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    printer.print(i, fields, out);
    if (out.size() < chunk && i + 1 < range.end) continue;
    write_all(STDOUT_FILENO, out, "standard output");
    out.clear();
  }
}

}  // namespace

void add_dataset_command(Command app) {
  auto options = std::make_shared<DatasetOptions>();
  Command command = app.add_subcommand("dataset", "print the samples that a run would see, in its order");
  command.add_option("config", options->file, "the run's YAML file").type_name("CONFIG.yaml");
  command.add_option("overrides", options->overrides, "values in place of those in the file")
      .type_name("section.key=value");
  command.add_option("--split", options->split, "train, valid or test").type_name("SPLIT");
  command.add_option("--samples", options->samples, "from A up to but not B; without it, all").type_name("A:B");
  command.add_option("--fields", options->fields, "of tokens, labels, loss_mask and position_ids")
      .type_name("FIELD,...");
  add_merge_command(command);
  command.callback([options, command] {
    if (command.has_parsed_subcommand()) return;
    require_user(!options->file.empty(), "tera dataset needs a run's CONFIG.yaml, or one of its commands: merge");
    print_samples(*options);
  });
}

}  // namespace tera
