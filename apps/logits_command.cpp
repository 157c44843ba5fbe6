// tera logits: one forward pass over given tokens, in fp32 whatever the stored dtype, written as a file to compare.

#include <charconv>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/commands.h"
#include "apps/model_options.h"
#include "apps/parent_folder.h"
#include "tera/base/error.h"
#include "tera/checkpoint/safetensors.h"
#include "tera/infer/generator.h"

namespace tera {
namespace {

struct LogitsOptions : ModelOptions {
  std::string tokens, output;
};

using Sequences = std::vector<std::vector<std::int32_t>>;  // all of one length

// Parses "1,2,3;4,5,6"; blanks and a separator at the end are ignored.
Sequences parse_tokens(std::string_view text) {
  Sequences sequences(1);
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at != end;) {
    if (*at == ';') sequences.emplace_back();
    if (*at == ';' || *at == ',' || *at == ' ' || *at == '\n') {
      ++at;
      continue;
    }
    std::int32_t id = -1;
    const auto [stop, error] = std::from_chars(at, end, id);
    require_user(error == std::errc{} && id >= 0, "--tokens: '{:.20}' is no token id; write ids as in \"1,2,3;4,5,6\"",
                 std::string_view(at, static_cast<std::size_t>(end - at)));
    sequences.back().push_back(id);
    at = stop;
  }
  if (sequences.size() > 1 && sequences.back().empty()) sequences.pop_back();
  return sequences;
}

void check_tokens(const Sequences& sequences, const ModelShape& model) {
  const std::size_t length = sequences.front().size();
  require_user(length > 0, "--tokens: there are none; write ids as in \"1,2,3;4,5,6\"");
  require_user(static_cast<std::int64_t>(length) <= model.max_positions,
               "--tokens: {} in a sequence are more than the model's {} positions", length, model.max_positions);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    require_user(sequences[i].size() == length, "--tokens: sequence {} has {} ids and the first {}; all need as many",
                 i + 1, sequences[i].size(), length);
    for (const std::int32_t id : sequences[i])
      require_user(id < model.vocab, "--tokens: {} is beyond the model's vocabulary, which ends at {}", id,
                   model.vocab - 1);
  }
}

struct LogitsTask {
  OpenModel model;
  Setup setup;
  Sequences sequences;
};

LogitsTask make_task(const LogitsOptions& options, const Launch& launch) {
  Sequences sequences = parse_tokens(options.tokens);
  OpenModel model(options.model);
  Setup setup = options.setup(model, launch);
  check_tokens(sequences, setup.model);
  return {std::move(model), std::move(setup), std::move(sequences)};
}

// The rank that has the logits writes them, a row at a time, without the padding of the vocabulary.
void write_rows(const LogitsTask& task, Generator& generator, const std::string& output) {
  const auto batch = std::ssize(task.sequences), length = std::ssize(task.sequences.front());
  const ModelShape& model = task.setup.model;
  std::unique_ptr<SafetensorsWriter> writer;
  if (generator.has_logits()) make_parent_folder("--output", output);
  if (generator.has_logits())
    writer = std::make_unique<SafetensorsWriter>(
        output, std::vector{SafetensorsSpec{"logits", DType::f32, shape(batch, length, model.vocab)}});
  for (const std::vector<std::int32_t>& sequence : task.sequences) {
    const std::span<const float> logits = generator.prompt_logits(sequence);
    for (std::int64_t row = 0; writer && row < length; ++row)
      writer->write("logits", std::as_bytes(logits.subspan(static_cast<std::size_t>(row * model.padded_vocab),
                                                           static_cast<std::size_t>(model.vocab))));
  }
  if (writer) writer->finish();
}

void compute(const LogitsTask& task, RankHandle& rank_handle, const std::string& output,
             const std::optional<VerifyShard>& verified, int local_rank) {
  Backend backend = make_backend(task.setup.config.dist, {.local_rank = local_rank});
  const std::unique_ptr<Comm> world = rank_handle.join(*backend.ops);
  std::unique_ptr<Generator> generator;
  report_faults(*world, [&] {
    const auto length = std::ssize(task.sequences.front());
    generator = std::make_unique<Generator>(
        task.setup, backend, Generator::Capacity{.max_prompt = length, .max_tokens = length, .every_row = true},
        world.get());
    task.model.load(generator->params(), *backend.ops, task.setup.model, verified);
    world->barrier();  // no rank writes before all have verified the files that they read
    write_rows(task, *generator, output);
  });
}

void write_logits(const LogitsOptions& options) {
  const Launch launch = detect_launch(options.ranks);
  const LogitsTask task = prepare_ranks(launch, [&] { return make_task(options, launch); });
  run_ranks(launch, task.setup.parallel.timeout_seconds, [&](RankHandle& rank_handle) {
    compute(task, rank_handle, options.output, options.verified(rank_handle.rank(), launch), launch.local_rank);
  });
}

}  // namespace

void add_logits_command(Command app) {
  auto options = std::make_shared<LogitsOptions>();
  Command command = app.add_subcommand("logits", "one forward pass in fp32: the logits of given tokens, as a file");
  options->add_to(command);
  command.add_option("--tokens", options->tokens, "ids of sequences of one length: \"1,2,3;4,5,6\"")
      .required()
      .type_name("IDS");
  command.add_option("--output", options->output, "file to write: tensor `logits` [B,S,V] in f32")
      .required()
      .type_name("F.safetensors");
  command.callback([options] { write_logits(*options); });
}

}  // namespace tera
