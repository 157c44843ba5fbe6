#include <fmt/core.h>

#include <cstdio>
#include <memory>

#include "apps/commands.h"
#include "apps/model_options.h"
#include "tera/base/error.h"
#include "tera/base/file.h"
#include "tera/base/utf8.h"
#include "tera/infer/generator.h"
#include "tera/train/launch.h"

namespace tera {
namespace {

constexpr std::size_t max_prompt_bytes = std::size_t{16} << 20;

struct GenerateArguments : ModelOptions {
  std::string prompt, prompt_file;
  GenerateOptions generate;
};

std::string read_prompt(const GenerateArguments& options) {
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

std::vector<std::int32_t> encode_prompt(const std::string& text, const OpenModel& model, const Tokenizer& tokenizer,
                                        std::int64_t vocab) {
  std::vector<std::int32_t> tokens;
  tokenizer.encode(text, tokens);
  if (tokens.empty()) tokens.push_back(model.first_token(tokenizer));  // without a prompt, begin a document
  require_user(tokens.front() >= 0, "--prompt is needed: this tokenizer has no token that begins or ends a document");
  for (const std::int32_t token : tokens)
    require_user(token < vocab, "the prompt's token {} is beyond the model's vocabulary, which ends at {}", token,
                 vocab - 1);
  return tokens;
}

void check_options(const GenerateArguments& options) {
  options.generate.sampling.check();
  require_user(options.generate.max_new_tokens >= 1, "--max-new-tokens {} is not at least 1",
               options.generate.max_new_tokens);
}

// The input of all ranks, made before they start.
struct GenerateTask {
  OpenModel model;
  Setup setup;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::int32_t> prompt;
  GenerateOptions generate;
};

GenerateTask make_task(const GenerateArguments& options, const Launch& launch) {
  check_options(options);
  const std::string text = read_prompt(options);
  OpenModel model(options.model);
  Setup setup = options.setup(model, launch);
  std::unique_ptr<Tokenizer> tokenizer = model.tokenizer(setup);
  std::vector<std::int32_t> prompt = encode_prompt(text, model, *tokenizer, setup.model.vocab);
  const std::int64_t length = std::ssize(prompt), positions = setup.model.max_positions;
  require_user(length < positions, "the prompt's {} tokens leave no room in the model's {} positions", length,
               positions);
  GenerateOptions generate = options.generate;
  generate.max_new_tokens = std::min(generate.max_new_tokens, positions - length);
  generate.stop = model.stop_tokens(*tokenizer);
  return {std::move(model), std::move(setup), std::move(tokenizer), std::move(prompt), std::move(generate)};
}

void print_sample(const GenerateArguments& options) {
  const Launch launch = detect_launch(options.ranks);
  const GenerateTask task = prepare_ranks(launch, [&] { return make_task(options, launch); });
  run_ranks(launch, task.setup.parallel.timeout_seconds, [&](RankHandle& rank_handle) {
    Backend backend = make_backend(task.setup.config.dist, backend_options(task.setup, launch.local_rank));
    const std::unique_ptr<Comm> world = rank_handle.join(*backend.ops);
    const std::int64_t length = std::ssize(task.prompt);
    std::unique_ptr<Generator> generator;
    std::vector<std::int32_t> tokens = task.prompt;
    report_faults(*world, [&] {
      generator = std::make_unique<Generator>(
          task.setup, backend,
          Generator::Capacity{.max_prompt = length, .max_tokens = length + task.generate.max_new_tokens}, world.get());
      task.model.load(generator->params(), *backend.ops, task.setup.model,
                      options.verified(rank_handle.rank(), launch));
      world->barrier();  // no rank generates before all have verified the files that they read
      generator->generate(task.prompt, task.generate, [&](std::int32_t token) { tokens.push_back(token); });
    });
    if (rank_handle.rank() != 0) return;
    const std::string sample = task.tokenizer->decode(tokens) + "\n";
    std::fwrite(sample.data(), 1, sample.size(), stdout);  // a sample may hold zero bytes
    if (std::ssize(tokens) == task.setup.model.max_positions &&
        options.generate.max_new_tokens > task.generate.max_new_tokens) {
      std::fflush(stdout);
      fmt::print(stderr, "tera: the text ends here because the model has {} positions\n",
                 task.setup.model.max_positions);
    }
  });
}

}  // namespace

void add_generate_command(Command app) {
  auto options = std::make_shared<GenerateArguments>();
  options->generate.sampling.temperature = 0;
  Command command = app.add_subcommand("generate", "text from a model; greedy unless a temperature is given");
  options->add_to(command);
  const Option prompt =
      command.add_option("--prompt", options->prompt, "text to continue; none: begin a document").type_name("TEXT");
  command.add_option("--prompt-file", options->prompt_file, "file with the text to continue")
      .type_name("F")
      .excludes(prompt);
  command.add_option("--max-new-tokens", options->generate.max_new_tokens, "how many tokens to add")
      .capture_default_str();
  // --top-k and --top-p have no effect without a temperature.
  const Option temperature =
      command.add_option("--temperature", options->generate.sampling.temperature, "0: always the most likely token")
          .capture_default_str();
  command.add_option("--top-k", options->generate.sampling.top_k, "only the k most likely tokens; 0: all")
      .needs(temperature)
      .capture_default_str();
  command
      .add_option("--top-p", options->generate.sampling.top_p,
                  "only the likeliest tokens that reach this probability together")
      .needs(temperature)
      .capture_default_str();
  command.add_option("--seed", options->generate.seed, "of the draws").capture_default_str();
  command.callback([options] { print_sample(*options); });
}

}  // namespace tera
