// cuDNN describes attention as a graph of tensors with fixed sizes and strides; building one takes a fraction of a
// second, so graphs are kept by everything they depend on. Pointers are given at each run, in the order of the tensors'
// numbers.

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING  // the program starts on machines without cuDNN
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include "tera/backend/cuda/libraries/cudnn_attention.h"

#include <cudnn_frontend.h>
#include <fmt/core.h>

#include <array>

#include "tera/backend/cuda/attention_remarks.h"
#include "tera/backend/cuda/attention_workspace.h"
#include "tera/backend/cuda/kernels/attention/attention.cuh"
#include "tera/backend/cuda/runtime/cuda_error.h"
#include "tera/backend/cuda/runtime/open_library.h"
#include "tera/ops/planned_calls.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // its header asks for this variable; set once, by load_cudnn()
}

namespace tera::cuda {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using TensorAttributes = fe::graph::Tensor_attributes;
using TensorPointer = std::shared_ptr<TensorAttributes>;

// cudnn-frontend opens the CUDA runtime by name, too; a library that is loaded already is found by its name alone.
bool load_runtime() { return open_library(CUDART_VERSION >= 13000 ? "libcudart.so.13" : "libcudart.so.12") != nullptr; }

bool load_cudnn() {
  static const bool loaded = [] {
    if (!load_runtime()) return false;
    fe::cudnn_dlhandle = open_library("libcudnn.so.9");
    return fe::cudnn_dlhandle != nullptr;
  }();
  return loaded;
}

// Operands in the order of their numbers in the graph, which begin with 1.
enum Operand : int { q, k, v, out, lse, dout, dq, dk, dv };
constexpr int forward_operands = 5, backward_operands = 9;
constexpr std::int64_t uid_of(Operand operand) { return operand + 1; }
constexpr std::int64_t q_lengths_uid = 20, k_lengths_uid = 21, first_begins_uid = 30;

// Everything a graph depends on.
struct GraphKey {
  DType dtype = DType::bf16;
  bool backward = false, documents = false, causal = true;
  std::int64_t sequences = 0, queries = 0, keys = 0;  // lengths; of documents: the largest length
  std::int64_t heads = 0, kv_heads = 0, head_size = 0;
  std::int64_t value_size = 0;  // channels of v, out and their gradients, whose heads are head_size apart as well
  std::int64_t window = 0;
  float scale = 0;
  std::array<std::int64_t, backward_operands> row_strides{};  // by operand; the stride of lse is not used
  bool operator==(const GraphKey&) const = default;
  int operands() const { return backward ? backward_operands : forward_operands; }
};

template <class Args>
GraphKey shared_key(const Args& args) {
  const AttentionShape& shape = args.shape;
  GraphKey key;
  key.dtype = args.q.dtype;
  key.documents = static_cast<bool>(shape.q_offsets);
  key.causal = shape.mask == Mask::causal;
  key.sequences = sequence_count(shape);
  key.queries = args.q.dim(0) / (key.documents ? 1 : shape.batch);
  key.keys = args.k.dim(0) / (key.documents ? 1 : shape.batch);
  key.heads = args.q.dim(1);
  key.kv_heads = args.k.dim(1);
  key.head_size = args.q.dim(2);
  key.value_size = shape.values % 8 == 0 ? shape.value_channels(key.head_size) : key.head_size;
  key.window = shape.window < key.keys ? shape.window : 0;
  key.scale = shape.scale;
  key.row_strides = {args.q.stride[0], args.k.stride[0], args.v.stride[0], args.out.stride[0]};
  return key;
}

GraphKey key_of(const AttentionArgs& args) { return shared_key(args); }

// The key of one slice.
GraphKey key_of(const AttentionBackArgs& args, bool deterministic) {
  GraphKey key = shared_key(args);
  const AttentionSlices slices = attention_back_slices(args, deterministic);
  const std::int64_t group = key.heads / key.kv_heads;
  key.backward = true;
  if (!key.documents) key.sequences = slices.sequences;
  key.kv_heads = slices.kv_heads;
  key.heads = slices.kv_heads * group;
  key.row_strides[dout] = args.dout.stride[0];
  key.row_strides[dq] = args.dq.stride[0];
  key.row_strides[dk] = args.dk.stride[0];
  key.row_strides[dv] = args.dv.stride[0];
  return key;
}

// Puts the tensors of a call into a graph.
class Describer {
 public:
  Describer(Graph& graph, const GraphKey& key) : graph_(graph), key_(key) {}

  TensorPointer input(Operand operand) {
    TensorPointer tensor = graph_.tensor(TensorAttributes());
    set_layout(operand, tensor);
    return tensor;
  }
  void output(Operand operand, const TensorPointer& tensor) {
    set_layout(operand, tensor);
    tensor->set_output(true);
  }

  // What SDPA_attributes and SDPA_backward_attributes have in common.
  template <class Options>
  void set_options(Options& options) {
    options.set_attn_scale(key_.scale);
    if (key_.causal) {
      // Both alignments are equal for equal lengths, and the upper left one is better supported.
      const bool equal = key_.documents || key_.queries == key_.keys;
      options.set_diagonal_alignment(equal ? fe::DiagonalAlignment_t::TOP_LEFT : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
      options.set_diagonal_band_right_bound(0);
      // Keeps keys with key + bound > query: as many as our window, the query's own among them.
      if (key_.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(key_.window));
    }
    if (!key_.documents) return;
    options.set_padding_mask(true).set_seq_len_q(lengths(q_lengths_uid)).set_seq_len_kv(lengths(k_lengths_uid));
    options.set_max_total_seq_len_q(key_.queries);
    options.set_max_total_seq_len_kv(key_.keys);
  }

 private:
  void set_layout(Operand operand, const TensorPointer& tensor) {
    const bool of_keys = operand == k || operand == v || operand == dk || operand == dv;
    const std::int64_t heads = of_keys ? key_.kv_heads : key_.heads, rows = of_keys ? key_.keys : key_.queries;
    const std::int64_t stride = key_.row_strides[static_cast<std::size_t>(operand)];
    tensor->set_uid(uid_of(operand));
    if (operand == lse) {
      tensor->set_dim({key_.sequences, heads, rows, 1}).set_data_type(fe::DataType_t::FLOAT);
      if (key_.documents)
        tensor->set_stride({rows * heads, 1, heads, 1});  // [Tq,N]
      else if (key_.backward)
        tensor->set_stride({heads * rows, rows, 1, 1});  // [B,N,S]; before 9.26 backward takes no other
      else
        tensor->set_stride({rows, key_.sequences * rows, 1, 1});  // the caller's: [N,B*S]
    } else {
      const bool of_values = operand == v || operand == out || operand == dout || operand == dv;
      tensor->set_dim({key_.sequences, heads, rows, of_values ? key_.value_size : key_.head_size});
      tensor->set_stride({rows * stride, key_.head_size, stride, 1});
    }
    if (key_.documents) tensor->set_ragged_offset(begins(operand));
  }

  TensorPointer begins(Operand operand) {
    return graph_.tensor(TensorAttributes()
                             .set_uid(first_begins_uid + operand)
                             .set_dim({key_.sequences + 1, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(fe::DataType_t::INT64));
  }
  TensorPointer lengths(std::int64_t uid) {
    return graph_.tensor(TensorAttributes()
                             .set_uid(uid)
                             .set_dim({key_.sequences, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(fe::DataType_t::INT32));
  }

  Graph& graph_;
  const GraphKey& key_;
};

void describe_forward(Graph& graph, const GraphKey& key) {
  Describer describer(graph, key);
  auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
  describer.set_options(options);
  const auto [result, stats] = graph.sdpa(describer.input(q), describer.input(k), describer.input(v), options);
  describer.output(out, result);
  describer.output(lse, stats);
}

void describe_backward(Graph& graph, const GraphKey& key, bool deterministic) {
  Describer describer(graph, key);
  auto options = fe::graph::SDPA_backward_attributes().set_name("attention_back");
  options.set_deterministic_algorithm(deterministic);
  describer.set_options(options);
  const auto [of_q, of_k, of_v] =
      graph.sdpa_backward(describer.input(q), describer.input(k), describer.input(v), describer.input(out),
                          describer.input(dout), describer.input(lse), options);
  describer.output(dq, of_q);
  describer.output(dk, of_k);
  describer.output(dv, of_v);
}

// Pointers are given by position: the graph must expect exactly our tensors, in our order.
bool asks_for_ours(const Graph& graph, const GraphKey& key) {
  std::vector<std::int64_t> expected;
  for (int i = 0; i < key.operands(); ++i) expected.push_back(uid_of(static_cast<Operand>(i)));
  if (key.documents) expected.insert(expected.end(), {q_lengths_uid, k_lengths_uid});
  for (int i = 0; i < key.operands() && key.documents; ++i) expected.push_back(first_begins_uid + i);
  return graph.get_variant_pack_uids_sorted() == expected;
}

struct Plan {
  GraphKey key;
  std::unique_ptr<Graph> graph;  // null: cuDNN does not support it
  std::size_t bytes = 0;         // workspace
  std::string reason;            // why cuDNN does not support it
};

class Pointers {
 public:
  void push(void* pointer) { at_[static_cast<std::size_t>(count_++)] = pointer; }
  void** data() { return at_.data(); }
  int count() const { return count_; }

 private:
  std::array<void*, 2 * backward_operands + 2> at_{};
  int count_ = 0;
};

// The part of a tensor that begins at this row and head.
void* part_of(const Tensor& tensor, std::int64_t row, std::int64_t head) {
  const std::int64_t offset = row * tensor.stride[0] + head * tensor.dim(2);
  return static_cast<std::byte*>(tensor.data) + offset * static_cast<std::int64_t>(size_of(tensor.dtype));
}

std::string describe(const GraphKey& key) {
  return fmt::format("attention{} of {} x {} queries, {} keys, N={} G={} D={}{} {}{}", key.backward ? "_back" : "",
                     key.sequences, key.queries, key.keys, key.heads, key.kv_heads, key.head_size,
                     key.value_size < key.head_size ? fmt::format(" ({} of values)", key.value_size) : "",
                     name_of(key.dtype), key.documents ? " in documents" : "");
}

}  // namespace

struct CudnnAttention::State {
  bool deterministic = true, exact = false;
  cudaStream_t stream = nullptr;
  cudnnHandle_t handle = nullptr;  // null: there is no cuDNN
  int architecture = 0;            // 90 for 9.0
  std::vector<Plan> plans;         // a handful: looked through in order
  std::string missing;             // why there is no cuDNN
  std::string without_cudnn;       // a line for each shape in prepare() that cuDNN does not support

  ~State() {
    plans.clear();
    if (handle) fe::detail::destroy_handle(handle);
  }

  Plan& find(const GraphKey& key) {
    for (Plan& plan : plans)
      if (plan.key == key) return plan;
    return plans.emplace_back(build(key));
  }

  // Where cuDNN refuses values with fewer channels, values are padded to the head size: the padding channels are zero.
  Plan& plan_for(const GraphKey& key) {
    if (Plan& narrow = find(key); narrow.graph || key.value_size == key.head_size) return narrow;
    GraphKey wide = key;
    wide.value_size = key.head_size;
    return find(wide);
  }
  Plan& plan_for(const AttentionArgs& args) { return plan_for(key_of(args)); }
  Plan& plan_for(const AttentionBackArgs& args) { return plan_for(key_of(args, deterministic)); }

  Plan build(const GraphKey& key) const {
    Plan plan{.key = key};
    auto graph = std::make_unique<Graph>();
    try {
      if (const std::string problem = try_build(*graph, key, plan.bytes); problem.empty())
        plan.graph = std::move(graph);
      else
        plan.reason = fmt::format("{}: {}", describe(key), problem);
    } catch (const std::exception& problem) {
      plan.reason = fmt::format("{}: {}", describe(key), problem.what());
    }
    return plan;
  }

  // Empty, or why not. The first plan that cuDNN's heuristics offer is taken, so that runs repeat.
  std::string try_build(Graph& graph, const GraphKey& key, std::size_t& bytes) const {
    graph.set_io_data_type(key.dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT)
        .set_sm_version(architecture);
    if (key.backward)
      describe_backward(graph, key, deterministic);
    else
      describe_forward(graph, key);
    if (auto status = graph.build(handle, {fe::HeurMode_t::A}); status.is_bad()) return status.get_message();
    std::int64_t needed = 0;
    if (auto status = graph.get_workspace_size(needed); status.is_bad()) return status.get_message();
    bytes = static_cast<std::size_t>(needed);
    return asks_for_ours(graph, key) ? "" : "its graph asks for other tensors than were given";
  }

  void run(const Plan& plan, Pointers& pointers, std::byte* space) const {
    auto status = plan.graph->execute(handle, pointers.data(), pointers.count(), space);
    if (status.is_bad()) fail("cuDNN, {}: {}", describe(plan.key), status.get_message());
  }

  void check_space(const Plan& plan, std::size_t reserved, const CudnnLayout& layout) const {
    const std::size_t before = layout.lse + layout.tables;
    if (before + plan.bytes <= reserved) return;
    fail(
        "cuDNN's plan for {} takes {} bytes of workspace and {} before them; {} are reserved, of which cudnn_layout() "
        "in attention_workspace.cpp expects {} for it",
        describe(plan.key), plan.bytes, before, reserved, layout.library);
  }

  // Fills the tables of a call with documents and adds them to its pointers; without documents, does nothing.
  void add_tables(const GraphKey& key, const AttentionShape& shape, std::byte* space, Pointers& pointers) const {
    if (!key.documents) return;
    kernels::DocumentTableParams params;
    params.offsets = shape.q_offsets.as<std::int32_t>();
    params.documents = static_cast<int>(key.sequences);
    params.operands = key.operands();
    for (int i = 0; i < params.operands; ++i)
      params.strides[i] = i == lse ? key.heads : key.row_strides[static_cast<std::size_t>(i)];
    params.begins = reinterpret_cast<std::int64_t*>(space);
    params.lengths = reinterpret_cast<int*>(space + cudnn_operands * (key.sequences + 1) * 8);
    check(kernels::launch_document_tables(params, stream), "attention's document tables");
    pointers.push(params.lengths);
    pointers.push(params.lengths);
    for (int i = 0; i < params.operands; ++i) pointers.push(params.begins + i * (key.sequences + 1));
  }
};

CudnnAttention::CudnnAttention(const CudaOptions& options, cudaStream_t stream) : state_(std::make_unique<State>()) {
  state_->deterministic = options.deterministic;
  state_->exact = options.exact_attention;
  state_->stream = stream;
  if (options.exact_attention) return;
  if (!load_cudnn()) {
    state_->missing = "cuDNN was not found";
    return;
  }
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, options.device), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, options.device), "cudaDeviceGetAttribute");
  state_->architecture = major * 10 + minor;
  if (const auto status = fe::detail::create_handle(&state_->handle); status != CUDNN_STATUS_SUCCESS) {
    state_->handle = nullptr;
    state_->missing =
        fmt::format("cuDNN {} did not start (cudnnCreate: status {})", cudnn_version(), static_cast<int>(status));
    return;
  }
  require(fe::detail::set_stream(state_->handle, stream) == CUDNN_STATUS_SUCCESS, "cudnnSetStream failed");
}

CudnnAttention::~CudnnAttention() = default;

bool CudnnAttention::supports(const AttentionArgs& args) {
  return state_->handle && cudnn_supports(args) && state_->plan_for(args).graph;
}

bool CudnnAttention::supports(const AttentionBackArgs& args) {
  return state_->handle && cudnn_supports(args, state_->deterministic) && state_->plan_for(args).graph;
}

std::size_t CudnnAttention::library_bytes(const AttentionArgs& args) {
  return supports(args) ? state_->plan_for(args).bytes : 0;
}

std::size_t CudnnAttention::library_bytes(const AttentionBackArgs& args) {
  return supports(args) ? state_->plan_for(args).bytes : 0;
}

std::string CudnnAttention::reason() const {
  std::string lines;
  for (const Plan& plan : state_->plans)  // where narrow values were refused, padded ones were tried
    if (!plan.graph && plan.key.value_size == plan.key.head_size) lines += plan.reason + "\n";
  return lines;
}

std::string CudnnAttention::remarks() const {
  if (state_->exact) return {};
  if (!state_->missing.empty()) return fmt::format("attention runs on kernels of our own: {}\n", state_->missing);
  std::string lines;
  if (const std::string refused = reason(); !refused.empty())
    lines += fmt::format("attention runs on kernels of our own where cuDNN {} refused:\n{}", cudnn_version(), refused);
  if (!state_->without_cudnn.empty())
    lines += fmt::format("attention runs on kernels of our own where cuDNN does not suit:\n{}", state_->without_cudnn);
  return lines;
}

// Where a version of cuDNN needs more workspace than the formulas foresee, our own kernels compute the call.
void CudnnAttention::prepare(const PlannedCalls& calls, std::size_t workspace) {
  const auto drop_if_too_large = [&](Plan& plan, const CudnnLayout& layout) {
    const std::size_t needed = layout.lse + layout.tables + plan.bytes;
    if (needed <= workspace) return false;
    plan.graph.reset();
    plan.reason =
        fmt::format("{}: its plan takes {} bytes of workspace, {} are reserved", describe(plan.key), needed, workspace);
    return true;
  };
  const auto fit_to_workspace = [&](const auto& args, const CudnnLayout& layout) {  // padded values are tried second
    while (supports(args) && drop_if_too_large(state_->plan_for(args), layout)) {
    }
  };
  state_->without_cudnn = attention_without_cudnn(calls, state_->deterministic);
  for (const AttentionArgs& args : calls.attentions) fit_to_workspace(args, cudnn_layout(args));
  for (const AttentionBackArgs& args : calls.attention_backs)
    fit_to_workspace(args, cudnn_layout(args, state_->deterministic));
}

void CudnnAttention::forward(const AttentionArgs& args, std::span<std::byte> workspace) {
  const Plan& plan = state_->plan_for(args);
  const CudnnLayout layout = cudnn_layout(args);
  state_->check_space(plan, workspace.size(), layout);
  std::byte* const tables = workspace.data() + layout.lse;
  void* const stats = layout.lse > 0 ? static_cast<void*>(workspace.data()) : args.lse.data;
  Pointers pointers;
  for (void* pointer : {args.q.data, args.k.data, args.v.data, args.out.data, stats}) pointers.push(pointer);
  state_->add_tables(plan.key, args.shape, tables, pointers);
  state_->run(plan, pointers, tables + layout.tables);
  if (layout.lse == 0) return;
  const std::int64_t rows = args.q.dim(0), heads = args.q.dim(1);  // [Tq,N] to [N,Tq]
  const kernels::PermuteParams params{.from = static_cast<const float*>(stats),
                                      .to = args.lse.as<float>(),
                                      .sizes = {1, heads, rows},
                                      .from_strides = {0, 1, heads},
                                      .to_strides = {0, rows, 1}};
  check(kernels::launch_permute(params, state_->stream), "attention's lse");
}

void CudnnAttention::backward(const AttentionBackArgs& args, std::span<std::byte> workspace) {
  const Plan& plan = state_->plan_for(args);
  const GraphKey& key = plan.key;
  const CudnnLayout layout = cudnn_layout(args, state_->deterministic);
  state_->check_space(plan, workspace.size(), layout);
  const std::int64_t rows = args.q.dim(0), N = args.q.dim(1), G = args.k.dim(1), group = N / G;
  const std::int64_t batch = key.documents ? 1 : args.shape.batch;
  auto* stats = args.lse.as<float>();
  if (layout.lse > 0) {  // [N,B*S] to [B,N,S], or [N,Tq] to [Tq,N]
    stats = reinterpret_cast<float*>(workspace.data());
    kernels::PermuteParams params{.from = args.lse.as<float>(), .to = stats, .sizes = {batch, N, rows / batch}};
    const std::int64_t S = rows / batch;
    const std::int64_t from[3] = {S, rows, 1}, ordered[3] = {N * S, S, 1}, by_row[3] = {0, 1, N};
    std::copy_n(from, 3, params.from_strides);
    std::copy_n(key.documents ? by_row : ordered, 3, params.to_strides);
    check(kernels::launch_permute(params, state_->stream), "attention_back's lse");
  }
  std::byte* const tables = workspace.data() + layout.lse;
  const std::int64_t sequences_at_once = key.documents ? 1 : key.sequences;
  for (std::int64_t sequence = 0; sequence < batch; sequence += sequences_at_once)
    for (std::int64_t kv_head = 0; kv_head < G; kv_head += key.kv_heads) {
      const std::int64_t head = kv_head * group, q_row = sequence * key.queries, k_row = sequence * key.keys;
      Pointers pointers;
      pointers.push(part_of(args.q, q_row, head));
      pointers.push(part_of(args.k, k_row, kv_head));
      pointers.push(part_of(args.v, k_row, kv_head));
      pointers.push(part_of(args.out, q_row, head));
      pointers.push(stats + (sequence * N + head) * key.queries);
      pointers.push(part_of(args.dout, q_row, head));
      pointers.push(part_of(args.dq, q_row, head));
      pointers.push(part_of(args.dk, k_row, kv_head));
      pointers.push(part_of(args.dv, k_row, kv_head));
      state_->add_tables(key, args.shape, tables, pointers);
      state_->run(plan, pointers, tables + layout.tables);
    }
}

std::string cudnn_version() {
  if (!load_cudnn()) return {};
  const auto version = fe::detail::get_backend_version();
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

}  // namespace tera::cuda
