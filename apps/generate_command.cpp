#include <cstdio>
#include <memory>
#include <optional>

#include "apps/choice.h"
#include "apps/commands.h"
#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/utf8.h"
#include "tera/checkpoint/checkpoint.h"
#include "tera/config/load.h"
#include "tera/config/resolve.h"
#include "tera/train/data_source.h"
#include "tera/train/generator.h"
#include "tera/train/launch.h"

namespace tera {
namespace {

constexpr std::size_t max_prompt_bytes = std::size_t{16} << 20;

struct Options {
  std::string model, prompt, prompt_file;
  std::vector<std::string> layout;
  std::optional<int> ranks;
  GenerateOptions generate;
  std::int64_t threads = 0;
  std::string device = "auto";
};

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

// The model is the checkpoint's; how it is cut over ranks is asked for here, whatever it was trained with.
Setup setup_of(const Checkpoint& checkpoint, const Options& options, const Launch& launch) {
  for (const std::string& assignment : options.layout)
    require_user(assignment.starts_with("dist."), "'{}': of the config only dist.key=value can be given here",
                 assignment);
  LoadedConfig loaded = load_config_text(checkpoint.config_yaml(), (checkpoint.folder() / "manifest.json").string());
  loaded.config.dist = {.device = parse_choice<DeviceChoice>("--device", options.device), .threads = options.threads};
  loaded.config.ddp = {};
  find_tokenizer(checkpoint, loaded.config.tokenizer);
  loaded.config.comm_overlap = {};
  loaded.config.train.global_batch_size = 0;  // one microbatch, whatever the number of replicas was
  loaded.config.train.rampup_batch_size.clear();
  std::erase_if(loaded.origins, [](const auto& origin) { return origin.first.starts_with("dist."); });
  apply_overrides(loaded, options.layout);
  share_cores(loaded.config.dist, launch);
  const Setup setup = resolve(loaded.config, Purpose::inspect, &loaded.origins, launch.world);
  require_user(setup.parallel.dp == 1,
               "{} ranks, but tensor x pipeline parallelism takes {}; give dist.tensor_model_parallel_size and "
               "dist.pipeline_model_parallel_size whose product is the number of ranks",
               launch.world, launch.world / setup.parallel.dp);
  return setup;
}

std::string read_prompt(const Options& options) {
  const bool from_file = !options.prompt_file.empty();
  std::string text = from_file ? read_whole_file(options.prompt_file, max_prompt_bytes) : options.prompt;
  require_user(!from_file || !text.empty(), "--prompt-file {} is empty; without a prompt a document is begun",
               options.prompt_file);
  const std::size_t good = valid_utf8_prefix(text);
  if (good < text.size())
    fail_user("{} is not UTF-8 text: byte {} is 0x{:02x}",
              from_file ? "--prompt-file " + options.prompt_file : "--prompt", good,
              static_cast<unsigned char>(text[good]));
  return text;
}

std::vector<std::int32_t> encode_prompt(const std::string& text, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> tokens;
  tokenizer.encode(text, tokens);
  require_user(!tokens.empty() || tokenizer.eod() >= 0,
               "--prompt is needed: this tokenizer has no token that stands between documents");
  if (tokens.empty()) tokens.push_back(tokenizer.eod());  // nothing to go on: begin a document
  return tokens;
}

void check_options(const Options& options) {
  options.generate.sampling.check();
  require_user(options.generate.max_new_tokens >= 1, "--max-new-tokens {} is not at least 1",
               options.generate.max_new_tokens);
  require_user(options.threads >= 0 && options.threads <= 1024,
               "--threads is {}; it must be from 0 (all cores) to 1024", options.threads);
}

// What all ranks know before they start.
struct Task {
  Checkpoint checkpoint;
  Setup setup;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::int32_t> prompt;
  GenerateOptions generate;
};

Task make_task(const Options& options, const Launch& launch) {
  check_options(options);
  const std::string text = read_prompt(options);
  Checkpoint checkpoint(options.model);
  Setup setup = setup_of(checkpoint, options, launch);
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(setup);
  std::vector<std::int32_t> prompt = encode_prompt(text, *tokenizer);
  const std::int64_t length = std::ssize(prompt), positions = setup.model.max_positions;
  require_user(length < positions, "the prompt's {} tokens leave no room in the model's {} positions", length,
               positions);
  GenerateOptions generate = options.generate;
  generate.max_new_tokens = std::min(generate.max_new_tokens, positions - length);
  generate.stop = tokenizer->eod();
  return {std::move(checkpoint), std::move(setup), std::move(tokenizer), std::move(prompt), generate};
}

void print_sample(const Options& options) {
  const Launch launch = detect_launch(options.ranks);
  const Task task = prepare_ranks(launch, [&] { return make_task(options, launch); });
  run_ranks(launch, task.setup.parallel.timeout_seconds, [&](Seat& seat) {
    Backend backend = make_backend(task.setup.config.dist);
    const std::unique_ptr<Comm> world = seat.join(*backend.ops);
    const std::int64_t length = std::ssize(task.prompt);
    Generator generator(task.setup, backend, length, length + task.generate.max_new_tokens, world.get());
    task.checkpoint.load_weights(generator.params(), *backend.ops, task.setup.model);
    std::vector<std::int32_t> tokens = task.prompt;
    generator.generate(task.prompt, task.generate, [&](std::int32_t token) { tokens.push_back(token); });
    if (seat.rank() != 0) return;
    const std::string sample = task.tokenizer->decode(tokens) + "\n";
    std::fwrite(sample.data(), 1, sample.size(), stdout);  // a sample may hold zero bytes
  });
}

}  // namespace

void add_generate_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  options->generate.sampling.temperature = 0;
  CLI::App* command = app.add_subcommand("generate", "text from a checkpoint; greedy unless a temperature is given");
  command->add_option("--model", options->model, "a checkpoint, or a folder of checkpoints")
      ->required()
      ->type_name("DIR");
  auto* prompt =
      command->add_option("--prompt", options->prompt, "text to continue; none: begin a document")->type_name("TEXT");
  command->add_option("--prompt-file", options->prompt_file, "file with the text to continue")
      ->type_name("F")
      ->excludes(prompt);
  command->add_option("--max-new-tokens", options->generate.max_new_tokens, "how many tokens to add")
      ->capture_default_str();
  // The other two would change nothing without it.
  auto* temperature =
      command->add_option("--temperature", options->generate.sampling.temperature, "0: always the most likely token")
          ->capture_default_str();
  command->add_option("--top-k", options->generate.sampling.top_k, "only the k most likely tokens; 0: all")
      ->needs(temperature)
      ->capture_default_str();
  command
      ->add_option("--top-p", options->generate.sampling.top_p,
                   "only the likeliest tokens that reach this probability together")
      ->needs(temperature)
      ->capture_default_str();
  command->add_option("--seed", options->generate.seed, "of the draws")->capture_default_str();
  command->add_option("--device", options->device, "auto, cpu or cuda")->capture_default_str();
  command->add_option("--threads", options->threads, "CPU threads; 0: all cores")->capture_default_str();
  command->add_option("--ranks", options->ranks, "ranks to run as threads of this process")->type_name("N");
  command->add_option("layout", options->layout, "how the model is cut over ranks; without it, it is not")
      ->type_name("dist.key=value");
  command->callback([options] { print_sample(*options); });
}

}  // namespace tera
