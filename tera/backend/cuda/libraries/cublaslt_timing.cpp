// CublasLt::prepare: which of the library's candidates is fastest here, measured and written down.
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "tera/backend/cuda/cuda_ops.h"
#include "tera/backend/cuda/kernels/copy.cuh"
#include "tera/backend/cuda/libraries/cublaslt.h"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/backend/cuda/workspace.h"
#include "tera/ops/gemm.h"

namespace tera::cuda {
namespace {

// All candidates are timed in turn, several times over, so that each runs at the clocks and the heat that the others
// leave; the median of the rounds counts.
constexpr int timing_rounds = 5;
constexpr float round_ms = 2;  // a candidate's time in a round, at least two runs

struct Event {
  Event() { tera::cuda::check(cudaEventCreate(&event), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t event = nullptr;
};

// Places the tensors of a planned call in spare memory, filled with random values: zeros would run faster than data.
class Trial {
 public:
  Trial(const GemmArgs& planned, std::span<std::byte> spare, cudaStream_t stream) : args(planned), spare_(spare) {
    for (Tensor* tensor : {&args.a, &args.b, &args.out, &args.bias, &args.residual}) allocate(*tensor, stream);
  }

  GemmArgs args;
  bool has_capacity = true;

 private:
  void allocate(Tensor& tensor, cudaStream_t stream) {
    if (!tensor) return;
    const std::int64_t elements = (tensor.dim(0) - 1) * tensor.stride[0] + tensor.stride[0];
    const std::size_t bytes = (static_cast<std::size_t>(elements) * size_of(tensor.dtype) + 255) / 256 * 256;
    has_capacity = has_capacity && bytes <= spare_.size();
    if (!has_capacity) return;
    tensor.data = spare_.data();
    spare_ = spare_.subspan(bytes);
    tera::cuda::check(kernels::launch_random_fill(tensor.data, scalar_of(tensor.dtype), elements, 1, stream),
                      "random fill");
  }

  std::span<std::byte> spare_;
};

}  // namespace

void CublasLt::prepare(std::span<const GemmArgs> gemms, std::span<std::byte> workspace, std::span<std::byte> spare,
                       cudaStream_t stream) {
  cudaDeviceProp properties{};
  tera::cuda::check(cudaGetDeviceProperties(&properties, options_.device), "cudaGetDeviceProperties");
  GemmChoices choices(options_.choices, {.gpu = properties.name, .library = api_.version(), .options = list_options()});
  if (choices.from_elsewhere())
    remarks_ += fmt::format("{} was made with another GPU, library or options: kernels are chosen anew\n",
                            options_.choices.string());
  std::set<std::string> seen;  // a weight gradient comes twice, written and added
  for (const GemmArgs& planned : gemms) {
    // Planned addresses are those of an arena that begins at zero: aligned as the real ones will be.
    const GemmProblem problem(planned);
    const std::string name = problem.name();
    if (!seen.insert(name).second) continue;
    if (!cublaslt_supports(planned)) {
      remarks_ += fmt::format("cuBLASLt does not take {}: a slow kernel of our own does\n", name);
      continue;
    }
    Plan& plan = plan_of(planned);
    if (plan.candidates.empty()) {
      remarks_ += fmt::format("cuBLASLt has no kernel for {}: a slow one of our own takes it\n", name);
      continue;
    }
    if (!options_.time_gemms) continue;
    const std::optional<std::size_t> earlier = choices.find(name);
    if (earlier && *earlier < plan.candidates.size()) {
      plan.chosen = *earlier;
      continue;
    }
    const Trial trial(planned, spare, stream);
    if (!trial.has_capacity) {
      remarks_ += fmt::format("no room to time the kernels for {}: cuBLASLt's own choice is taken\n", name);
      continue;
    }
    GemmArgs timed = trial.args;
    timed.accumulate |= problem.accumulate;  // like most calls: only the first microbatch writes a weight gradient
    plan.chosen = time_candidates(plan, timed, workspace, stream);
    choices.set(name, plan.chosen);
  }
  if (options_.time_gemms) choices.save();
}

// The options of find_candidates(), beyond the problem itself.
std::string CublasLt::list_options() const {
  return fmt::format("{} candidates, {} bytes of workspace{}{}", candidates_asked, gemm_workspace_bytes,
                     options_.deterministic ? ", deterministic" : "", options_.tf32 ? ", tf32" : "");
}

std::size_t CublasLt::time_candidates(const Plan& plan, const GemmArgs& args, std::span<std::byte> workspace,
                                      cudaStream_t stream) {
  const std::size_t count = plan.candidates.size();
  if (count <= 1) return 0;
  Event begin, end;
  const auto time = [&](std::size_t candidate, int runs) {
    tera::cuda::check(cudaEventRecord(begin.event, stream), "cudaEventRecord");
    for (int i = 0; i < runs; ++i) launch(plan, candidate, args, workspace, stream);
    tera::cuda::check(cudaEventRecord(end.event, stream), "cudaEventRecord");
    tera::cuda::check(cudaEventSynchronize(end.event), "a matrix product under trial");
    float ms = 0;
    tera::cuda::check(cudaEventElapsedTime(&ms, begin.event, end.event), "cudaEventElapsedTime");
    return ms / static_cast<float>(runs);
  };
  // The first run also loads the kernel. What the library lists can still refuse to run.
  std::string refusal;
  const auto refuses = [&](std::size_t candidate) {
    try {
      launch(plan, candidate, args, workspace, stream);
      return false;
    } catch (const Error& error) {
      refusal = error.what();
      return true;
    }
  };
  struct Timed {
    std::size_t candidate;
    int runs;
    std::vector<float> times;
  };
  std::vector<Timed> all;
  for (std::size_t i = 0; i < count; ++i) {
    if (refuses(i)) continue;
    time(i, 1);  // waits for the first
    all.push_back({i, std::clamp(static_cast<int>(round_ms / std::max(time(i, 1), 1e-3f)), 2, 50), {}});
  }
  require(!all.empty(), "cuBLASLt runs none of the {} kernels that it has for a product; the last: {}", count, refusal);
  for (int round = 0; round < timing_rounds; ++round)
    for (Timed& timed : all) timed.times.push_back(time(timed.candidate, timed.runs));
  const auto median = [](Timed& timed) {
    const auto middle = timed.times.begin() + timing_rounds / 2;
    std::nth_element(timed.times.begin(), middle, timed.times.end());
    return *middle;
  };
  std::size_t best = 0;
  float best_ms = std::numeric_limits<float>::infinity();
  for (Timed& timed : all)
    if (const float ms = median(timed); ms < best_ms) best = timed.candidate, best_ms = ms;
  return best;
}

}  // namespace tera::cuda
