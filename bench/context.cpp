// Context parallelism of a fixed degree against dynamic context parallelism, a degree for each microbatch, on documents
// of which one in a hundred fills a sequence and the others are short (log-normal):
//
//   context_bench [--config FILE] [--ranks N] [--steps N] [--median ROWS] [--in-order] [--bandwidth GB/S]
//                 [--kind p2p] [--no-threads] [key=value]
//
// Documents are packed into sequences so that hardly a row is empty, or, with --in-order, as they come: one that does
// not fit begins the next sequence.
//
// First modelled: every rank's step is computed alone, with all ops at their shapes on this machine, and communication
// is instantaneous; a step takes as long as its slowest rank, plus the bytes sent in attention over the bandwidth,
// where one is given (without overlap). Then measured: all ranks as threads, fixed and dynamic alternating. Prints a
// table in Markdown.

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tera/base/error.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"
#include "tera/setup/load.h"
#include "tera/setup/resolve.h"
#include "tera/train/data_source.h"
#include "tera/train/training_step.h"

namespace {

using namespace tera;

struct Options {
  std::string config = "bench/steps/context.yaml";
  int ranks = 8, steps = 3;
  double median = 0;     // median length of a document; 0: a 64th of a sequence
  double bandwidth = 0;  // GB/s of a rank; 0: communication is free
  bool threads = true, in_order = false;
  std::string kind;  // a cp_comm_type; empty: all
  std::vector<std::string> overrides;
};

// Documents in sequences: each goes, as it comes, into the open sequence that it fills best. In order, only the last
// one is open.
class Documents final : public Dataset {
 public:
  Documents(std::int64_t sequences, std::int64_t seq_length, double median, std::int64_t vocab, bool in_order)
      : seq_length_(seq_length), vocab_(vocab) {
    const std::size_t open_sequences = in_order ? 2 : 8;  // the last of which has just been begun
    std::mt19937 random(1234);
    std::lognormal_distribution<double> lengths(std::log(median), 1.0);
    std::vector<std::vector<std::int64_t>> open;
    std::vector<std::int64_t> free_rows;              // rows left in each open sequence
    while (std::ssize(sequences_) < 8 * sequences) {  // the first ones to be full are not like the others
      const bool fills = random() % 100 == 0;
      const std::int64_t rows =
          fills ? seq_length : std::clamp<std::int64_t>(std::llround(lengths(random)), 2, seq_length);
      std::size_t best = free_rows.size();
      for (std::size_t i = 0; i < free_rows.size(); ++i)
        if (free_rows[i] >= rows && (best == free_rows.size() || free_rows[i] < free_rows[best])) best = i;
      if (best == free_rows.size()) {
        open.emplace_back();
        free_rows.push_back(seq_length);
      }
      open[best].push_back(rows);
      free_rows[best] -= rows;
      if (free_rows[best] > 0 && open.size() < open_sequences) continue;
      const auto done = in_order ? 0 : std::ranges::min_element(free_rows) - free_rows.begin();
      sequences_.push_back(open[static_cast<std::size_t>(done)]);
      open.erase(open.begin() + done);
      free_rows.erase(free_rows.begin() + done);
    }
    sequences_.erase(sequences_.begin(), sequences_.end() - 4 * sequences);
    std::ranges::shuffle(sequences_, random);
    sequences_.resize(static_cast<std::size_t>(sequences));
  }
  std::int64_t samples() const override { return std::ssize(sequences_); }
  bool has_gaps() const override { return true; }
  bool has_marks() const override { return true; }
  void sample(std::int64_t index, std::span<std::int32_t> tokens) const override {
    const std::int64_t rows = used(index);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int64_t>(i) <= rows
                      ? static_cast<std::int32_t>((index * 7919 + static_cast<std::int64_t>(i * i)) % vocab_)
                      : -1;
  }
  void marks(std::int64_t index, std::span<std::uint8_t> marks) const override {
    std::ranges::fill(marks, counts);
    std::int64_t begin = 0;
    for (const std::int64_t rows : of(index)) {
      marks[static_cast<std::size_t>(begin)] |= begins;
      begin += rows;
    }
    if (begin < std::ssize(marks)) marks[static_cast<std::size_t>(begin)] |= begins;  // the rest is padding
  }
  const std::vector<std::int64_t>& of(std::int64_t index) const {
    return sequences_[static_cast<std::size_t>(index % samples())];
  }
  std::int64_t used(std::int64_t index) const {
    std::int64_t rows = 0;
    for (const std::int64_t length : of(index)) rows += length;
    return std::min(rows, seq_length_);
  }

 private:
  std::int64_t seq_length_, vocab_;
  std::vector<std::vector<std::int64_t>> sequences_;
};

// A communicator whose other ranks answer at once with this rank's data, to time one rank alone. It counts sent bytes.
class SilentComm final : public Comm {
 public:
  SilentComm(Ops& ops, const RankLayout& layout, std::string name, int rank, int size,
             std::map<std::string, double>& sent)
      : ops_(ops), layout_(layout), name_(std::move(name)), rank_(rank), size_(size), sent_(sent) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return name_; }
  void barrier() override {}
  void abort(std::string_view) noexcept override {}
  std::unique_ptr<Comm> split(int, int, std::string name) override {
    for (const PlannedComm* group : const_cast<Groups&>(layout_.groups).all())
      if (group->name() == name)
        return std::make_unique<SilentComm>(ops_, layout_, name, group->rank(), group->size(), sent_);
    fail("there is no group {}", name);
  }

 private:
  Ticket copy(const Tensor& from, const Tensor& to) {
    if (from.data != to.data) ops_(CopyArgs{.src = from, .dst = to});
    return ops_.record();
  }
  void count(const Tensor& tensor, double parts) { sent_[name_] += parts * static_cast<double>(tensor.bytes()); }

  Ticket do_all_reduce(const Tensor&, Reduce, Ticket after) override { return after; }
  Ticket do_all_gather(const Tensor& shard, const Tensor& full, Ticket) override {
    count(shard, size_ - 1);
    Ticket last{};
    for (std::int64_t i = 0; i < size_; ++i) last = copy(shard, full.rows(i * shard.dim(0), (i + 1) * shard.dim(0)));
    return last;
  }
  Ticket do_reduce_scatter(const Tensor& full, const Tensor& shard, Reduce, Ticket) override {
    count(shard, size_ - 1);
    return copy(full.rows(rank_ * shard.dim(0), (rank_ + 1) * shard.dim(0)), shard);
  }
  Ticket do_all_to_all(const Tensor& in, const Tensor& out, std::span<const std::int64_t>,
                       std::span<const std::int64_t>, Ticket) override {
    count(in, static_cast<double>(size_ - 1) / size_);
    return copy(in, out);
  }
  Ticket do_broadcast(const Tensor&, int, Ticket after) override { return after; }
  Ticket do_exchange(std::span<const Transfer> transfers, Ticket after) override {
    const Transfer* from = nullptr;
    for (const Transfer& transfer : transfers)
      if (transfer.send) from = &transfer;
    for (const Transfer& transfer : transfers) {
      if (transfer.send) count(transfer.tensor, 1);
      if (!transfer.send && from) after = copy(from->tensor, transfer.tensor);
    }
    return after;
  }

  Ops& ops_;
  const RankLayout& layout_;
  std::string name_;
  int rank_, size_;
  std::map<std::string, double>& sent_;
};

// Loads the microbatches of a rank, with fixed or dynamic context parallelism.
class Feeder {
 public:
  Feeder(const Setup& setup, const Dataset& data, TrainingStep& step)
      : setup_(setup),
        step_(step),
        loader_(data, options(setup, step)),
        host_({.rows = setup.batch.micro_batch * setup.batch.seq_length, .packed = setup.batch.packs_documents}) {
    const Groups& groups = step.layout().groups;
    if (setup.parallel.dynamic_cp)
      dynamic_cp_loader_.emplace(dynamic_cp_options(setup, groups.dp.rank(), groups.cp.rank()));
  }
  // Returns the number of microbatches.
  std::int64_t load(std::int64_t number) {
    const std::int64_t samples = setup_.batch.global_batch, consumed = number * samples;
    if (dynamic_cp_loader_) {
      const DynamicCpLoader::Step& assigned = dynamic_cp_loader_->step(loader_, consumed, samples);
      for (std::int64_t i = 0; i < assigned.scheduler().microbatches(); ++i)
        step_.load(i, dynamic_cp_loader_->fill(loader_, assigned, i, host_.spans()).rows,
                   1.0f / static_cast<float>(assigned.counts().targets));
      padding_ = assigned.scheduler().padding();
      return assigned.scheduler().microbatches();
    }
    const auto targets = static_cast<float>(loader_.counted_targets(consumed, samples));
    for (std::int64_t i = 0; i < setup_.batch.num_microbatches; ++i) {
      const BatchCounts counts = loader_.fill(consumed, i, host_.spans());
      step_.load(i, host_.filled(counts), 1.0f / targets);
    }
    return setup_.batch.num_microbatches;
  }
  double padding() const { return padding_; }

 private:
  static BatchOptions options(const Setup& setup, const TrainingStep& step) {
    BatchOptions options = batch_options(setup, nullptr);
    options.data_rank = step.layout().groups.dp.rank();
    options.data_ranks = step.layout().groups.dp.size();
    return options;
  }
  const Setup& setup_;
  TrainingStep& step_;
  BatchLoader loader_;
  std::optional<DynamicCpLoader> dynamic_cp_loader_;
  BatchBuffers host_;
  double padding_ = 0;
};

// Wall-clock time, or processor time of this thread, so that other work on the machine counts less.
enum class Time : std::uint8_t { clock, thread };

double now_ms(Time time) {
  timespec t{};
  clock_gettime(time == Time::thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

double step_ms(TrainingStep& step, Ops& ops, std::int64_t microbatches, Time time) {
  ops.finish(ops.record());
  const double begin = now_ms(time);
  step.forward_backward(microbatches);
  step.update(1e-4);
  ops.finish(ops.record());
  return now_ms(time) - begin;
}

struct Result {
  std::vector<double> ms;            // time of each step
  std::vector<double> microbatches;  // number in each step
  double mean_of_ranks = 0;          // modelled ms of the mean rank, while `ms` is of the slowest
  double sent = 0;                   // bytes a step in attention, of the rank that sends most
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(std::max<std::size_t>(values.size(), 1));
}

// Times each rank alone, one after the other, and takes the best of two runs of each step: other work counts less.
Result model(const Setup& setup, const Dataset& data, const Options& options) {
  Result result{.ms = std::vector<double>(static_cast<std::size_t>(options.steps)), .microbatches = {}};
  double all = 0;
  const DistConfig& dist = setup.config.dist;
  const Time time = dist.device == DeviceChoice::cpu && dist.threads == 1 ? Time::thread : Time::clock;
  for (int rank = 0; rank < setup.parallel.mesh.world; ++rank) {
    Backend backend = make_backend(setup.config.dist, backend_options(setup, 0));
    std::map<std::string, double> sent;
    TrainingStep step(setup, rank);
    SilentComm world(*backend.ops, step.layout(), "world", rank, setup.parallel.mesh.world, sent);
    step.bind(backend, world);
    Feeder feeder(setup, data, step);
    step_ms(step, *backend.ops, feeder.load(0), time);  // warm-up
    sent.clear();
    for (int i = 0; i < options.steps; ++i) {
      const std::int64_t microbatches = feeder.load(i);
      const double first = step_ms(step, *backend.ops, microbatches, time);
      feeder.load(i);
      double ms = std::min(first, step_ms(step, *backend.ops, microbatches, time));
      double bytes = 0;
      for (const auto& [name, sent_there] : sent)
        if (name.starts_with("cp")) bytes += sent_there / 2;  // the step ran twice
      sent.clear();
      result.sent = std::max(result.sent, bytes);
      if (options.bandwidth > 0) ms += bytes / options.bandwidth / 1e6;
      auto& slowest = result.ms[static_cast<std::size_t>(i)];
      slowest = std::max(slowest, ms);
      all += ms;
      if (rank == 0) result.microbatches.push_back(static_cast<double>(microbatches));
    }
  }
  result.mean_of_ranks = all / (setup.parallel.mesh.world * options.steps);
  return result;
}

Result measure(const Setup& setup, const Dataset& data, const Options& options) {
  Result result;
  run_threads(setup.parallel.mesh.world, {.timeout = std::chrono::seconds(600)}, [&](RankHandle& rank_handle) {
    Backend backend = make_backend(setup.config.dist, backend_options(setup, 0));
    const auto world = rank_handle.join(*backend.ops);
    TrainingStep step(setup, rank_handle.rank());
    step.bind(backend, *world);
    Feeder feeder(setup, data, step);
    for (int i = -1; i < options.steps; ++i) {  // the first warms up
      const std::int64_t microbatches = feeder.load(std::max(i, 0));
      world->barrier();
      const double ms = step_ms(step, *backend.ops, microbatches, Time::clock);
      world->barrier();
      if (rank_handle.rank() != 0 || i < 0) continue;
      result.ms.push_back(ms);
      result.microbatches.push_back(static_cast<double>(microbatches));
    }
  });
  return result;
}

// Keeps the faster of two rounds of each step.
void keep_best(Result& best, const Result& other) {
  if (best.ms.empty()) best = other;
  for (std::size_t i = 0; i < other.ms.size(); ++i) best.ms[i] = std::min(best.ms[i], other.ms[i]);
}

double number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require_user(error == std::errc{} && end == text.data() + text.size(), "'{}' is no number", text);
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  const auto next = [&](int& i) {
    require_user(i + 1 < argc, "{} needs a value", argv[i]);
    return std::string(argv[++i]);
  };
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--config")
      options.config = next(i);
    else if (name == "--ranks")
      options.ranks = static_cast<int>(number(next(i)));
    else if (name == "--steps")
      options.steps = static_cast<int>(number(next(i)));
    else if (name == "--median")
      options.median = number(next(i));
    else if (name == "--bandwidth")
      options.bandwidth = number(next(i));
    else if (name == "--kind")
      options.kind = next(i);
    else if (name == "--in-order")
      options.in_order = true;
    else if (name == "--no-threads")
      options.threads = false;
    else if (name.find('=') != std::string::npos)
      options.overrides.push_back(name);
    else
      fail_user("{}: --config, --ranks, --steps, --median, --in-order, --bandwidth, --kind, --no-threads or key=value",
                name);
  }
  require_user(options.ranks > 0 && options.steps > 0, "--ranks and --steps must be above 0");
  return options;
}

Setup setup_of(const Options& options, const std::vector<std::string>& more) {
  std::vector<std::string> overrides = options.overrides;
  overrides.insert(overrides.end(), more.begin(), more.end());
  const LoadedConfig loaded = load_config(options.config, overrides);
  return resolve(resolve_auto(loaded.config), Purpose::train, &loaded.origins, options.ranks);
}

void bench(const Options& options) {
  const Setup plain = setup_of(options, {});
  const BatchShape& batch = plain.batch;
  const double median = options.median > 0 ? options.median : static_cast<double>(batch.seq_length) / 64;
  const Documents data(batch.global_batch * options.steps, batch.seq_length, median, plain.model.vocab,
                       options.in_order);
  std::int64_t documents = 0, rows = 0;
  for (std::int64_t i = 0; i < data.samples(); ++i) {
    documents += std::ssize(data.of(i));
    rows += data.used(i);
  }
  fmt::print(
      "{} ranks: cp {} x dp {}; {} sequences of {} a step; documents of {:.0f} in the middle, {} in all, {:.1f} % of "
      "the rows empty\n\n",
      options.ranks, plain.parallel.mesh.cp, plain.parallel.dp, batch.global_batch, batch.seq_length, median, documents,
      100 - 100.0 * static_cast<double>(rows) / static_cast<double>(data.samples() * batch.seq_length));
  std::vector<std::string> kinds{"p2p", "all_gather", "a2a"};
  if (!options.kind.empty()) kinds = {options.kind};
  fmt::print("| | microbatches | modelled ms | mean rank | sent, MiB | threads ms |\n|---|---|---|---|---|---|\n");
  std::array<double, 2> best_model{1e300, 1e300}, best_threads{1e300, 1e300};  // fixed, dynamic
  for (const std::string& kind : kinds) {
    std::array<Result, 2> on_threads;
    const auto setup_for = [&](std::size_t dynamic) {
      return setup_of(options,
                      {"dist.cp_comm_type=" + kind, fmt::format("dist.dynamic_context_parallel={}", dynamic == 1)});
    };
    for (int round = 0; options.threads && round < 2; ++round)
      for (const std::size_t dynamic : {0, 1})
        keep_best(on_threads[dynamic], measure(setup_for(dynamic), data, options));
    for (const std::size_t dynamic : {0, 1}) {
      const Result modelled = model(setup_for(dynamic), data, options);
      const double ms = mean(modelled.ms), threads_ms = mean(on_threads[dynamic].ms);
      fmt::print("| {}, {} | {:.1f} | {:.0f} | {:.0f} | {:.0f} | {:.0f} |\n", dynamic == 1 ? "dynamic" : "fixed", kind,
                 mean(modelled.microbatches), ms, modelled.mean_of_ranks, modelled.sent / 0x1p20, threads_ms);
      std::fflush(stdout);
      best_model[dynamic] = std::min(best_model[dynamic], ms);
      best_threads[dynamic] = std::min(best_threads[dynamic], threads_ms);
    }
  }
  fmt::print("\nbest against best: modelled {:.2f} times as fast{}\n", best_model[0] / best_model[1],
             options.threads ? fmt::format(", on threads {:.2f}", best_threads[0] / best_threads[1]) : "");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    bench(parse(argc, argv));
  } catch (const UserError& error) {
    fmt::print(stderr, "context_bench: {}\n", error.what());
    return 2;
  }
}
