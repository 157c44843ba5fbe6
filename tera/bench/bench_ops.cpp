#include "tera/bench/bench_ops.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tera/backend/plan/plan_ops.h"
#include "tera/base/error.h"
#include "tera/ops/planned_calls.h"

namespace tera {
namespace {

// A case's calls cycle through copies of its tensors that together are larger than any cache.
constexpr std::size_t rotated_bytes = std::size_t{256} << 20;
constexpr std::size_t max_copies = 64;
constexpr int rounds = 5;  // the median of them counts

BenchShapes with_defaults(BenchShapes shapes, bool on_host) {
  // A layer of Llama 3.2 1B and of two models with experts, and something a CPU does in a moment.
  const BenchShapes large{.tokens = 16384,
                          .sequence = 4096,
                          .hidden = 2048,
                          .ffn = 8192,
                          .vocab = 128256,
                          .heads = 32,
                          .kv_heads = 8,
                          .head_size = 64,
                          .parameters = std::int64_t{1} << 28,
                          .experts = {{"mixtral", 32768, 8, 4096, 14336}, {"qwen3", 131072, 128, 2048, 768}}};
  const BenchShapes small{.tokens = 512,
                          .sequence = 256,
                          .hidden = 256,
                          .ffn = 704,
                          .vocab = 4096,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_size = 64,
                          .parameters = std::int64_t{1} << 20,
                          .experts = {{"small", 512, 8, 128, 96}}};
  for (const auto member :
       {&BenchShapes::tokens, &BenchShapes::sequence, &BenchShapes::hidden, &BenchShapes::ffn, &BenchShapes::vocab,
        &BenchShapes::heads, &BenchShapes::kv_heads, &BenchShapes::head_size, &BenchShapes::parameters})
    if (shapes.*member == 0) shapes.*member = (on_host ? small : large).*member;
  if (shapes.experts.empty()) shapes.experts = (on_host ? small : large).experts;
  return shapes;
}

void check_shapes(const BenchShapes& s) {
  require_user(s.tokens % s.sequence == 0, "{} tokens are no whole number of sequences of {}", s.tokens, s.sequence);
  require_user(s.heads % s.kv_heads == 0, "{} heads cannot share {} heads of keys and values", s.heads, s.kv_heads);
  require_user(s.head_size % 2 == 0, "a head of {} channels cannot be rotated in pairs", s.head_size);
}

// The memory and FLOPs of a case, from its rehearsal.
struct Rehearsed {
  BenchCase test;
  std::size_t bytes = 0, copies = 1;  // size of its tensors in one copy; number of copies
  double flops = 0, traffic = 0;
};

double traffic_of(const BenchCall& call) {
  std::size_t bytes = 0;
  for (const auto* tensors : {&call.read, &call.written})
    for (const Tensor& tensor : *tensors) bytes += tensor.bytes();
  return static_cast<double>(bytes);
}

Rehearsed rehearse(const BenchCase& test, PlanOps& plan) {
  Arena arena = Arena::measuring();
  BenchTensors tensors(arena);
  const BenchCall call = test.make(tensors);
  const double before = plan.flops();
  call.call(plan);
  const std::size_t bytes = align_up(arena.peak(), Arena::alignment);
  return {.test = test,
          .bytes = bytes,
          .copies = std::clamp<std::size_t>((rotated_bytes + bytes - 1) / bytes, 1, max_copies),
          .flops = plan.flops() - before,
          .traffic = traffic_of(call)};
}

class Stopwatch {
 public:
  Stopwatch(Ops& ops, const std::vector<BenchCall>& calls) : ops_(ops), calls_(calls) {}

  // Milliseconds of one call, over `repeats` of them.
  double run(std::int64_t repeats) {
    const Ticket begin = ops_.record();
    for (std::int64_t i = 0; i < repeats; ++i) calls_[next_++ % calls_.size()].call(ops_);
    const Ticket end = ops_.record();
    ops_.finish(end);
    return ops_.milliseconds(begin, end) / static_cast<double>(repeats);
  }

 private:
  Ops& ops_;
  const std::vector<BenchCall>& calls_;
  std::size_t next_ = 0;
};

double time_calls(Ops& ops, const std::vector<BenchCall>& calls, double budget_ms) {
  Stopwatch watch(ops, calls);
  const auto each_once = static_cast<std::int64_t>(calls.size());
  watch.run(each_once);  // loads kernels, touches memory
  const double estimate = std::max(watch.run(each_once), 1e-4);
  const auto repeats = std::clamp<std::int64_t>(static_cast<std::int64_t>(budget_ms / rounds / estimate), 1, 2000);
  std::array<double, rounds> times{};
  for (double& time : times) time = watch.run(repeats);
  std::sort(times.begin(), times.end());
  return times[rounds / 2];
}

bool is_limit(const BenchCase& test) { return test.op == "copy" || test.op == "gemm gate and up"; }

void set_fractions(std::vector<OpTime>& times) {
  double copy = 0, gemm = 0;
  for (const OpTime& time : times) {
    if (time.op == "copy") copy = time.rate();
    if (time.is_gemm()) gemm = std::max(gemm, time.rate());
  }
  for (OpTime& time : times) time.of_limit = time.rate() / (time.is_gemm() ? gemm : copy);
}

// "675 TFLOP/s", "12.3 GB/s".
std::string rate_text(const OpTime& time) {
  const double tera = time.rate() / 1e12;
  const auto* unit = time.is_gemm() ? "FLOP/s" : "B/s";
  return tera >= 1 ? fmt::format("{:.3g} T{}", tera, unit) : fmt::format("{:.3g} G{}", tera * 1e3, unit);
}

std::string table(const std::string& device, const std::vector<OpTime>& times) {
  std::string text = fmt::format("{}\n\n{:<34} {:<22} {:<5} {:>10} {:>14} {:>9}\n", device, "op", "shape", "dtype",
                                 "ms", "rate", "of limit");
  for (const OpTime& time : times)
    text += fmt::format("{:<34} {:<22} {:<5} {:>10.4f} {:>14} {:>7.1f} %\n", time.op, time.shape, name_of(time.dtype),
                        time.ms, rate_text(time), 100 * time.of_limit);
  return text +
         "\nLimits: the copy for what moves memory, the fastest product for products and attention; with --only, the\n"
         "fastest of the rows shown. A row named by two ops (gemm gate and up, swiglu) is both in one call: compare "
         "it\n"
         "with the sum of both.\n";
}

std::string as_json(const std::string& device, const std::vector<OpTime>& times) {
  nlohmann::json rows = nlohmann::json::array();
  for (const OpTime& time : times)
    rows.push_back({{"op", time.op},
                    {"shape", time.shape},
                    {"dtype", name_of(time.dtype)},
                    {"ms", time.ms},
                    {time.is_gemm() ? "tflops" : "tb_per_s", time.rate() / 1e12},
                    {"of_limit", time.of_limit}});
  return nlohmann::json{{"device", device}, {"ops", rows}}.dump() + "\n";
}

DType dtype_of_work(Precision precision, bool on_host) {
  switch (precision) {
    case Precision::fp32: return DType::f32;
    case Precision::bf16: return DType::bf16;
    case Precision::fp16: return DType::f16;
    case Precision::automatic: break;
  }
  return on_host ? DType::f32 : DType::bf16;
}

}  // namespace

std::vector<OpTime> time_ops(Backend& backend, const BenchOpsOptions& options) {
  const bool on_host = backend.device->is_host();
  const BenchShapes shapes = with_defaults(options.shapes, on_host);
  check_shapes(shapes);
  const DType dtype = dtype_of_work(options.precision, on_host);
  const std::int64_t logits_rows =
      std::clamp<std::int64_t>(backend.rules->traits().logits_chunk / shapes.vocab, 1, shapes.tokens);

  PlanOps plan(*backend.rules);
  std::vector<Rehearsed> cases;
  std::size_t largest = 0;
  for (const BenchCase& test : bench_cases(shapes, dtype, logits_rows)) {
    if (test.op.find(options.only) == std::string::npos && !is_limit(test)) continue;
    cases.push_back(rehearse(test, plan));
    largest = std::max(largest, cases.back().bytes * cases.back().copies);
  }
  require_user(std::any_of(cases.begin(), cases.end(), [](const Rehearsed& kept) { return !is_limit(kept.test); }),
               "--only {}: no op has this in its name; without it all of them are listed", options.only);
  require_user(largest + plan.workspace_peak() <= backend.device->available(),
               "these shapes take {} bytes, and {} are free; fewer tokens or parameters would take less",
               largest + plan.workspace_peak(), backend.device->available());
  const std::span<std::byte> slab = backend.device->allocate(largest);
  backend.ops->bind_workspace(backend.device->allocate(plan.workspace_peak()));
  backend.ops->prepare(plan.planned_calls(), slab);

  const double budget_ms = options.milliseconds > 0 ? options.milliseconds : on_host ? 200 : 100;
  std::vector<OpTime> times;
  for (const Rehearsed& rehearsed : cases) {
    Arena arena(slab, "bench", backend.device->is_host());
    BenchTensors tensors(arena, *backend.ops);
    std::vector<BenchCall> calls;
    for (std::size_t i = 0; i < rehearsed.copies; ++i) calls.push_back(rehearsed.test.make(tensors));
    times.push_back({.op = rehearsed.test.op,
                     .shape = rehearsed.test.shape,
                     .dtype = rehearsed.test.dtype,
                     .ms = time_calls(*backend.ops, calls, budget_ms),
                     .flops = rehearsed.flops,
                     .bytes = rehearsed.traffic});
  }
  set_fractions(times);
  return times;
}

std::string bench_ops(const BenchOpsOptions& options) {
  Backend backend = make_backend(options.dist, {.kernel_choices = options.kernel_choices});
  const std::vector<OpTime> times = time_ops(backend, options);
  if (options.report) options.report(backend.ops->remarks());
  return options.json ? as_json(backend.name, times) : table(backend.name, times);
}

}  // namespace tera
