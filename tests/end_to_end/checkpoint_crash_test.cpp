// A run that is killed again and again while it saves, and always resumes: in the end it equals the run that was never
// killed. TERA_KILLS (the slow test has 500 of each mode) says how often.

#include <cstdlib>
#include <random>

#include "tests/end_to_end/checkpoint_runs.h"
#include "tests/support/paths.h"

namespace tera::test {
namespace {

constexpr int max_lives = 4000;

int kills() {
  const char* const wanted = std::getenv("TERA_KILLS");
  return wanted ? std::atoi(wanted) : 5;
}

class CheckpointCrash : public CheckpointRuns {
 protected:
  std::string arguments(bool async, const std::string& save) const {
    return fmt::format(
        "{} train.train_iters={} train.eval_iters=0 checkpoint.save={} checkpoint.save_interval=1 "
        "checkpoint.keep_last={} checkpoint.async_save={}",
        on(layouts.at("dp2zero1")), steps_, path(save), keep_last_, async);
  }

  // One process of the run: it is killed some moments after it began to train or to save for the n-th time, or it ends.
  bool live(const std::string& words, std::mt19937& random) const {
    const double delay = std::uniform_real_distribution<>(0, 0.02)(random);
    const int saves = static_cast<int>(random() % 4);
    const std::string sign = saves == 0 ? "^batch: " : "durable";  // before anything is durable, too
    const Outcome outcome = run_shell(fmt::format(
        "\"{}\" train {} run.dir={} dist.threads=1 {} {} > {} 2>&1 & pid=$!; "
        "for i in $(seq 3000); do [ $(grep -c '{}' {}) -ge {} ] && break; kill -0 $pid 2>/dev/null || break; done; "
        "sleep {}; kill -9 $pid 2>/dev/null; wait $pid; echo status $?",
        paths::program, config("sweep_llama"), path("run"), schedule, words, path("out"), sign, path("out"),
        std::max(saves, 1), delay));
    EXPECT_EQ(outcome.output.find("status 2"), std::string::npos) << slurp(folder_ / "out");
    EXPECT_EQ(outcome.output.find("status 1\n"), std::string::npos) << slurp(folder_ / "out");
    return outcome.output.find("status 0") != std::string::npos;
  }

  // Every checkpoint that was reported as durable exists.
  void expect_nothing_lost(const std::string& saved) const {
    const std::string text = slurp(folder_ / "out"), words = "durable at step ";
    std::int64_t last = 0;
    for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
      last = std::atoll(text.c_str() + at + words.size());
    if (last == 0) return;
    const Checkpoint checkpoint(folder_ / saved);
    EXPECT_GE(checkpoint.step(), last) << text;
    checkpoint.verify();
  }

  void expect_survival(bool async) {
    const int wanted = kills();
    steps_ = std::min(wanted * 4 + 4, 400);
    expect_trained("sweep_llama", "never", arguments(async, "never-saved"));
    std::mt19937 random(async ? 1 : 2);
    int killed = 0;
    while (killed < wanted) {  // as many runs as it takes
      fs::remove_all(folder_ / "saved");
      fs::remove_all(folder_ / "run");
      keep_last_ = 3 - keep_last_;
      bool done = false;
      for (int life = 0; !done && life < max_lives; ++life) {
        done = live(arguments(async, "saved"), random);
        killed += done ? 0 : 1;
        expect_nothing_lost("saved");
        if (HasFailure()) return;
        if (killed >= wanted) break;
      }
      if (!done) expect_trained("sweep_llama", "run", arguments(async, "saved"));
      for (const char* key : {"step", "loss", "grad_norm", "lr"})
        EXPECT_EQ(column(folder_ / "run", key), column(folder_ / "never", key)) << key;
      EXPECT_TRUE(tensors("saved") == tensors("never-saved"));
    }
  }

  // A run that went back replaces its later checkpoints, and is killed while it does.
  void expect_survival_after_going_back(bool async) {
    const int wanted = kills();
    steps_ = std::min(wanted + 4, 40);
    keep_last_ = 0;
    expect_trained("sweep_llama", "before", arguments(async, "left"));
    const auto back = [&](const std::string& save) {
      return arguments(async, save) + " optimizer.lr=1e-3 checkpoint.load=" + path(save + "/step_00000002");
    };
    fs::copy(folder_ / "left", folder_ / "never-saved", fs::copy_options::recursive);
    expect_trained("sweep_llama", "never", back("never-saved"));
    std::mt19937 random(async ? 3 : 4);
    int killed = 0;
    while (killed < wanted) {
      fs::remove_all(folder_ / "saved");
      fs::remove_all(folder_ / "run");
      fs::copy(folder_ / "left", folder_ / "saved", fs::copy_options::recursive);
      bool done = false;
      for (int life = 0; !done && life < max_lives && killed < wanted; ++life) {
        done = live(back("saved"), random);
        killed += done ? 0 : 1;
        expect_nothing_lost("saved");
        if (HasFailure()) return;
      }
      if (!done) expect_trained("sweep_llama", "run", back("saved"));
      for (const char* key : {"step", "loss", "grad_norm", "lr"})
        EXPECT_EQ(column(folder_ / "run", key), column(folder_ / "never", key)) << key;
      EXPECT_TRUE(tensors("saved") == tensors("never-saved"));
    }
  }

  int steps_ = 0, keep_last_ = 2;
};

TEST_F(CheckpointCrash, Synchronous) { expect_survival(false); }
TEST_F(CheckpointCrash, Asynchronous) { expect_survival(true); }
TEST_F(CheckpointCrash, SynchronousAfterGoingBack) { expect_survival_after_going_back(false); }
TEST_F(CheckpointCrash, AsynchronousAfterGoingBack) { expect_survival_after_going_back(true); }

}  // namespace
}  // namespace tera::test
