// After binding, a run allocates nothing: real calls of malloc and its kin are counted, on all threads, over complete
// steps with data, metrics, console and evaluation. The bound memory is the planned one, byte for byte.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tera/backend/cpu/cpu_device.h"
#include "tera/base/signals.h"
#include "tera/train/sinks/console.h"
#include "tests/end_to_end/training_run.h"
#include "tests/support/count_allocations.h"
#include "tests/support/temp_folder.h"
#include "tests/support/watched_device.h"

namespace tera::test {
namespace {

struct Case {
  std::string name, config;
  std::vector<std::string> overrides;
  int kinds = 6;  // number of arenas that a step allocates from and frees
};

void PrintTo(const Case& test_case, std::ostream* out) { *out << test_case.name; }

std::vector<Case> cases() {
  return {
      {"llama", "tiny", {}},
      {"two_threads", "tiny", {"dist.threads=2"}},
      {"accumulated", "tiny", {"train.micro_batch_size=1", "train.global_batch_size=4"}},
      {"bf16", "tiny", {"mixed_precision.precision=bf16", "dist.threads=2"}},
      {"fp16", "tiny", {"mixed_precision.precision=fp16"}},  // its first steps are skipped
      {"sgd", "tiny", {"optimizer.optimizer=sgd"}},
      {"bf16_moments", "tiny", {"optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16"}},
      {"full_recompute", "tiny", {"model.recompute_granularity=full"}},
      {"selective_recompute",
       "tiny",
       {"model.recompute_granularity=selective", "model.recompute_modules=[layernorm, activation]"}},
      {"offload",
       "tiny",
       {"model.offload_modules=[attn_norm, attention, mlp_norm, mlp]", "train.micro_batch_size=1",
        "train.global_batch_size=4"},
       9},
      {"full_recompute_offload", "tiny", {"model.recompute_granularity=full", "model.offload_modules=[attn_norm]"}, 7},
      {"larger",
       "tiny",  // enough work for all threads in every operation
       {"model.hidden_size=256", "model.ffn_hidden_size=512", "train.seq_length=256", "dist.threads=3"}},
      {"gpt_with_dropout", "tiny_gpt", {"model.hidden_dropout=0.1", "model.attention_dropout=0.1"}},
      {"mistral", "tiny_mistral", {}},
      {"qwen2", "tiny_qwen2", {}},
      {"qwen3", "tiny_qwen3", {}},
      {"latents", "tiny_mla", {}},
      {"frozen", "tiny", {"model.freeze=['*layers.0*']"}},
      {"read_in_line", "tiny", {"dataset.num_workers=0"}},
      {"cyclic", "tiny", {"dataset.dataloader_type=cyclic", "train.seq_length=1000"}},
      {"packed_documents",
       "tiny",
       {"dataset.reset_attention_mask=true", "dataset.reset_position_ids=true", "dataset.eod_mask_loss=true"}},
      {"growing",
       "tiny",
       {"train.train_iters=0", "train.train_samples=30", "train.rampup_batch_size=[2,2,4]", "train.micro_batch_size=1",
        "train.global_batch_size=6", "scheduler.lr_warmup_iters=0"}}};
}

// Counts from the end of step `first` to the end of step `last`. It is added last, so that the work of all other
// destinations is inside.
class CountingSink final : public MetricsSink {
 public:
  CountingSink(std::int64_t first, std::int64_t last) : first_(first), last_(last) {}
  void step(const StepMetrics& metrics) override {
    if (metrics.step == last_) calls = stop_counting_allocations();
    if (metrics.step == first_) start_counting_allocations();
  }
  void eval(const EvalMetrics&) override { evaluations += 1; }

  std::int64_t calls = -1, evaluations = 0;

 private:
  std::int64_t first_, last_;
};

class Memory : public testing::TestWithParam<Case> {
 protected:
  // Six steps on text, with an evaluation after each other one.
  tera::Setup setup() const {
    std::vector<std::string> overrides{"train.train_iters=6",
                                       "train.train_samples=0",
                                       "train.eval_interval=2",
                                       "train.eval_iters=2",
                                       "dataset.kind=text",
                                       "dataset.split='50,50'",
                                       "dataset.data_path=" + text_.string(),
                                       "model.vocab_size=512"};
    overrides.insert(overrides.end(), GetParam().overrides.begin(), GetParam().overrides.end());
    return load_setup(GetParam().config, overrides);
  }

  static std::string some_text() {
    std::string text;
    for (int i = 0; i < 3000; ++i) text += std::to_string(i * 7919 % 10007) + (i % 10 == 9 ? "\n" : " ");
    return text;
  }

  TempFolder folder_;
  std::filesystem::path text_ = folder_.write("text.txt", some_text());
};

TEST_P(Memory, StepsAllocateNothing) {
  if (!can_count_allocations()) GTEST_SKIP() << "the sanitizer has an allocator of its own";
  const tera::Setup run = setup();
  StopRequest stop;
  const FileDescriptor console(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  Log log({.console = console.get(), .terminal = true});
  log.open_file(folder_ / "log.txt");
  Backend backend = make_backend(run.config.dist);
  Trainer trainer(run, backend, make_data_source(run), log);
  trainer.add_sink(std::make_unique<JsonlSink>(folder_ / "metrics.jsonl", AppendFile::Start::empty));
  trainer.add_sink(std::make_unique<ConsoleSink>(log, ConsoleSink::Options{.total_steps = 6, .log_interval = 1}));
  auto counting = std::make_unique<CountingSink>(2, 6);
  const CountingSink& count = *counting;
  trainer.add_sink(std::move(counting));
  trainer.run(stop);
  EXPECT_EQ(count.calls, 0);
  EXPECT_EQ(count.evaluations, 3);
}

TEST_P(Memory, TakesWhatWasPlannedToTheByte) {
  const tera::Setup run = setup();
  StopRequest stop;
  Log log({.console = -1});
  Backend backend = make_backend(run.config.dist);
  auto watched = std::make_unique<WatchedDevice>();
  const WatchedDevice& device = *watched;
  backend.device = std::move(watched);
  Trainer trainer(run, backend, make_data_source(run), log);
  trainer.run(stop);

  const MemoryPlan& plan = trainer.step().memory();
  EXPECT_EQ(device.requested, std::vector{plan.total()});
  const StageMemory& stage = trainer.step().stage_memory();
  int kinds = 0;
  stage.visit([&](std::string_view name, std::span<const Arena> arenas) {
    for (const Arena& arena : arenas) {
      EXPECT_EQ(arena.peak(), plan.item(name).bytes) << name;
      EXPECT_EQ(arena.mark(), 0u) << name << " was not given back";
    }
    ++kinds;
  });
  EXPECT_EQ(kinds, GetParam().kinds);
  stage.visit_host([&](std::string_view name, std::span<const Arena> arenas) {
    for (const Arena& arena : arenas) {
      EXPECT_EQ(arena.peak(), plan.host_item(name).bytes) << name;
      EXPECT_EQ(arena.mark(), 0u) << name << " was not given back";
    }
  });
  EXPECT_EQ(plan.offloaded_bytes() > 0, GetParam().kinds > 6);
}

INSTANTIATE_TEST_SUITE_P(Runs, Memory, testing::ValuesIn(cases()), [](const auto& test) { return test.param.name; });

// The counter sees allocations of every kind.
TEST(CountAllocations, SeesEveryWay) {
  if (!can_count_allocations()) GTEST_SKIP() << "the sanitizer has an allocator of its own";
  start_counting_allocations();
  auto number = std::make_unique<std::int64_t>(1);
  void* volatile memory = std::malloc(10);
  memory = std::realloc(memory, 1000);
  std::free(memory);
  memory = std::calloc(3, 5);
  std::free(memory);
  memory = std::aligned_alloc(64, 128);
  std::free(memory);
  void* aligned = nullptr;
  EXPECT_EQ(::posix_memalign(&aligned, 64, 100), 0);
  std::free(aligned);
  cpu::CpuDevice device;
  EXPECT_FALSE(device.allocate(1).empty());
  EXPECT_GE(stop_counting_allocations(), 7);
  EXPECT_EQ(*number, 1);
}

}  // namespace
}  // namespace tera::test
