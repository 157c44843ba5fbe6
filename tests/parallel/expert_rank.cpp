#include "tests/parallel/expert_rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "tera/base/rng.h"
#include "tera/checkpoint/checkpoint_writer.h"
#include "tera/ops/copy.h"
#include "tera/setup/load.h"
#include "tera/setup/resolve.h"
#include "tests/support/paths.h"

namespace tera::test {
namespace {

constexpr std::int64_t hidden = 20, ffn = 24, mixed = 32, all_experts = 4;
constexpr int items = 8;                              // items in a microbatch, over all ranks
constexpr std::string_view unused = "unused.weight";  // trained, and never in any GEMM

tera::Setup setup_of(const ExpertCase& one) {
  const LoadedConfig loaded = load_config(source_path("configs/tests/sweep_llama.yaml"), {});
  tera::Setup setup = resolve(loaded.config, Purpose::train, &loaded.origins, 1);
  setup.parallel.mesh = one.mesh;
  setup.parallel.sharding = one.sharding;
  setup.parallel.bucket_size = one.bucket_size;
  return setup;
}

// The gradient of one item: an integer from -4 to 4.
float term(std::uint64_t stream, std::int64_t element, int step, int microbatch, int item) {
  const auto counter = static_cast<std::uint64_t>(element) * 4096 + static_cast<std::uint64_t>(step) * 256 +
                       static_cast<std::uint64_t>(microbatch) * 32 + static_cast<std::uint64_t>(item);
  const std::uint64_t drawn = (stream ^ (counter * 0x9E3779B97F4A7C15u)) * 0xD1B54A32D192ED03u;
  return static_cast<float>(static_cast<int>((drawn >> 40) % 9) - 4);
}

std::uint64_t stream_of(const Part& part) { return rng_stream(11, part.name).seed; }

std::int64_t columns_of(const Part& part) { return part.global.rank == 2 ? part.global[1] : 1; }

std::int64_t element_of(const Part& part, std::int64_t row, std::int64_t column) {
  return (row + (part.split == 0 ? part.begin : 0)) * columns_of(part) + column + (part.split == 1 ? part.begin : 0);
}

std::int64_t width_of(const Param& param) { return count(param.spec.shape) / param.spec.shape[0]; }

ParamSpec dense(const std::string& name, const Part& part, Init init) {
  return {.name = name, .shape = part.local_shape(), .parts = {part}, .init = init, .decay = part.global.rank == 2};
}

void add_dense(ParamStore& params, const TensorParallel& tp, const std::string& layer) {
  const Init normal{.kind = Init::Kind::normal, .std = 0.1f};
  const auto full = [&](const char* name, Shape shape) { return Part{.name = layer + name, .global = shape}; };
  params.add(dense(layer + "mix", tp.piece(full("mix.weight", shape(mixed, hidden)), 0), normal));
  params.add(dense(layer + "scale", tp.replicated(full("scale", shape(hidden))), {.kind = Init::Kind::ones}));
  ParamSpec norm = dense(layer + "norm", tp.replicated(full("norm", shape(hidden))), {.kind = Init::Kind::ones});
  norm.partial_gradient = true;
  params.add(norm);
}

ParamSpec of_experts(const std::string& name, std::vector<Part> parts, Init init) {
  Shape shape = parts.back().local_shape();
  shape[0] += parts.back().local_row;
  const bool decay = shape.rank == 2;
  return {.name = name,
          .shape = shape,
          .parts = std::move(parts),
          .init = init,
          .decay = decay,
          .expert = true,
          .first_use_overwrites = decay};
}

void add_experts(ParamStore& params, const ExpertParallel& experts, const std::string& layer) {
  const Init normal{.kind = Init::Kind::normal, .std = 0.1f};
  const auto add = [&](const std::string& name, Init init, auto cut) -> Param& {
    const auto parts_of_expert = [&](std::int64_t expert) { return cut(fmt::format("{}experts.{}.", layer, expert)); };
    return params.add(of_experts(layer + "experts." + name, experts.parts(all_experts, parts_of_expert), init));
  };
  using Parts = std::vector<Part>;
  add("up", normal, [&](const std::string& expert) -> Parts {
    return {experts.piece({.name = expert + "gate.weight", .global = shape(ffn, hidden)}, 0),
            experts.piece({.name = expert + "up.weight", .global = shape(ffn, hidden)}, 0)};
  });
  add("down", normal, [&](const std::string& expert) -> Parts {
    return {experts.piece({.name = expert + "down.weight", .global = shape(hidden, ffn)}, 1)};
  });
  add("bias", {}, [&](const std::string& expert) -> Parts {
    return {experts.replicated({.name = expert + "bias", .global = shape(hidden)})};
  }).spec.partial_gradient = true;
  add("unused", normal, [&](const std::string& expert) -> Parts {
    return {experts.replicated({.name = fmt::format("{}{}", expert, unused), .global = shape(3, hidden)})};
  });
  add("frozen", normal, [&](const std::string& expert) -> Parts {
    return {experts.replicated({.name = expert + "frozen.weight", .global = shape(3, hidden)})};
  }).spec.trainable = false;
}

}  // namespace

std::string ExpertCase::describe() const {
  return fmt::format("{} ranks, tp {} cp {} pp {} ep {} etp {} in the order {}, {}{}, {}, buckets of {}", mesh.world,
                     mesh.tp, mesh.cp, mesh.pp, mesh.ep, mesh.etp, name_of(mesh.order), name_of(sharding),
                     overlap ? " with overlap" : "", name_of(compute), bucket_size);
}

OptimizerConfig expert_optimizer() { return {.lr = expert_rate, .weight_decay = 0.1, .clip_grad = 5}; }

std::vector<float> global_gradient(const Part& part, int step) {
  std::vector<float> sum(static_cast<std::size_t>(count(part.global)));
  if (part.name.ends_with(unused)) return sum;
  for (std::size_t i = 0; i < sum.size(); ++i)
    for (int microbatch = 0; microbatch < ExpertRank::microbatches; ++microbatch)
      for (int item = 0; item < items; ++item)
        sum[i] += term(stream_of(part), static_cast<std::int64_t>(i), step, microbatch, item);
  return sum;
}

void Gathered::put(const Part& part, std::int64_t row, std::int64_t column, float value) {
  auto& tensor = tensors_[part.name];
  auto& came = came_[part.name];
  tensor.resize(static_cast<std::size_t>(count(part.global)));
  came.resize(tensor.size());
  const auto at = static_cast<std::size_t>(element_of(part, row, column));
  contradicted_ = contradicted_ || (came[at] && tensor[at] != value);
  tensor[at] = value;
  came[at] = true;
}

bool Gathered::complete() const {
  return std::ranges::all_of(came_, [](const auto& each) { return std::ranges::count(each.second, false) == 0; });
}

void ExpertRank::build(ParamStore& params, const TensorParallel& tp, const ExpertParallel& experts, int first_layer,
                       int layers) {
  for (int i = 0; i < layers; ++i) {
    params.begin_block(i);
    const std::string layer = fmt::format("layers.{}.", first_layer + i);
    add_dense(params, tp, layer);
    add_experts(params, experts, layer);
  }
}

ExpertRank::ExpertRank(const ExpertCase& one, RankHandle& rank_handle)
    : ops_(1, cpu::best_isa()),
      case_(one),
      layout_(setup_of(one), rank_handle.rank()),
      params_(one.compute),
      optimizer_(expert_optimizer(), params_),
      world_(rank_handle.join(ops_)),
      blocks_(layers / one.mesh.pp) {
  build(params_, layout_.tp, layout_.experts, layout_.groups.pp.rank() * blocks_, blocks_);
  params_.lay_out(layout_.flat);
  ParamStore full(DType::f32);  // in the cut of this rank
  build(full, layout_.tp, layout_.experts, 0, layers);
  full.lay_out();
  optimizer_.span_ranks(
      {.world = &layout_.groups.world, .counts = layout_.counts_norm, .parts_of_model = norm_keys(full)});
  bind();
  layout_.groups.join(*world_);
  replicas_ = std::make_unique<DataParallel>(
      params_, layout_.groups, ops_,
      DataParallel::Options{.overlap_grad_reduce = one.overlap,
                            .overlap_param_gather = one.overlap,
                            .grads_in_f = std::vector<bool>(static_cast<std::size_t>(blocks_), false)});
  params_.initialize(ops_, 3);
}

void ExpertRank::bind() {
  std::vector<Arena> arenas(5, Arena::measuring());
  Arena &weights = arenas[0], &constants = arenas[1], &masters = arenas[2], &grads = arenas[3], &state = arenas[4];
  const auto take = [&] {
    params_.bind({weights, constants, &masters, &grads});
    optimizer_.bind(state);
  };
  take();
  for (Arena& arena : arenas) arena = Arena(device_.allocate(std::max<std::size_t>(arena.peak(), 64)), "real");
  take();
  ops_.bind_workspace(device_.allocate(std::size_t{1} << 16));  // for sums of squares
}

// An item is with one replica of a parameter, and where replicas of a part have only some terms, with one of these.
void ExpertRank::add_gradients(Param& param, int number, int microbatch) {
  if (!param.spec.trainable || param.spec.parts.front().name.ends_with(unused)) return;
  const Replica& replica = layout_.replicas.of(param.spec.expert);
  auto* grad = static_cast<float*>(param.grad.data);
  const std::int64_t width = width_of(param);
  for (const Part& part : param.spec.parts)
    for (int item = 0; item < items; ++item) {
      const bool here = item % replica.count == replica.index;
      const bool counted_here = !param.spec.partial_gradient || item / replica.count % part.replicas == part.replica;
      if (!here || !counted_here) continue;
      if (!param.accumulate_next()) std::fill_n(grad, count(param.spec.shape), 0.0f);
      for (std::int64_t row = 0; row < part.local_shape()[0]; ++row)
        for (std::int64_t column = 0; column < width; ++column)
          grad[(part.local_row + row) * width + column] +=
              term(stream_of(part), element_of(part, row, column), number, microbatch, item);
    }
}

void ExpertRank::see_values(int block, ExpertResult& result) {
  const std::lock_guard lock(result.mutex);
  for (const Param* param : params_.by_name()) {
    if (param->blocks.front() != block) continue;
    const std::vector<float> values = download(ops_, param->value);
    for (const Part& part : param->spec.parts)
      for (std::int64_t row = 0; row < part.local_shape()[0]; ++row)
        for (std::int64_t column = 0; column < width_of(*param); ++column)
          result.values.put(part, row, column,
                            values[static_cast<std::size_t>((part.local_row + row) * width_of(*param) + column)]);
  }
}

void ExpertRank::see_own(ExpertResult& result, bool gradients) {
  const std::lock_guard lock(result.mutex);
  for (const Bucket& bucket : params_.buckets()) {
    const std::vector<float> values = download(ops_, gradients ? bucket.local_grad : bucket.local_master);
    const std::int64_t own = bucket.begin + bucket.local_begin();
    for (const Param* param : bucket.params)
      for (const Part& part : param->spec.parts)
        for (std::int64_t row = 0; row < part.local_shape()[0]; ++row)
          for (std::int64_t column = 0; column < width_of(*param); ++column) {
            const std::int64_t at = param->offset + (part.local_row + row) * width_of(*param) + column - own;
            if (at >= 0 && at < std::ssize(values))
              (gradients ? result.gradients : result.masters)
                  .put(part, row, column, values[static_cast<std::size_t>(at)]);
          }
  }
}

// Gradient memory holds values of an earlier step, or NaN.
void ExpertRank::spoil_gradients() {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Bucket& bucket : params_.buckets())
    ops_(FillArgs{.out = bucket.grad ? bucket.grad : bucket.local_grad, .value = nan});
  for (const Tensor& buffer : params_.grad_buffers()) ops_(FillArgs{.out = buffer, .value = nan});
}

void ExpertRank::run(int number, ExpertResult* seen) {
  replicas_->training(seen == nullptr);
  if (!seen) {
    spoil_gradients();
    replicas_->begin_gradients();
  }
  for (int microbatch = 0; microbatch < (seen ? 1 : microbatches); ++microbatch) {
    for (int block = 0; block < blocks_; ++block) {
      replicas_->before(block, Act::F, block + 1 < blocks_ ? block + 1 : -1);
      if (seen) see_values(block, *seen);
      replicas_->after(block, Act::F, false);
    }
    for (int block = blocks_ - 1; !seen && block >= 0; --block) {
      replicas_->before(block, Act::BW, block - 1);
      for (Param* param : params_.by_name())
        if (param->blocks.front() == block) add_gradients(*param, number, microbatch);
      replicas_->after(block, Act::BW, microbatch + 1 == microbatches);
    }
  }
}

void ExpertRank::step(int number, ExpertResult& result) {
  run(number, nullptr);
  replicas_->finish_gradients();
  see_own(result, /*gradients=*/true);
  optimizer_.prepare(ops_, expert_rate, number + 1);
  optimizer_.step(ops_);
  replicas_->all_gather_params();
  run(number, &result);
  see_own(result, /*gradients=*/false);
  const std::lock_guard lock(result.mutex);
  result.norms.push_back(download(ops_, optimizer_.grad_norm()).front());
}

ModelState ExpertRank::state() const {
  ParamStore full(DType::f32);
  build(full, {}, {}, 0, layers);
  full.lay_out();
  return {list_tensors(full), params_, &optimizer_};
}

void ExpertRank::save(const std::filesystem::path& root, int steps) {
  CheckpointWriter writer({.root = root},
                          {.world = *world_, .ops = ops_, .device = device_, .replicas = layout_.replicas}, state());
  writer.save({.step = steps, .config_yaml = "", .updates = steps});
}

void ExpertRank::load(const std::filesystem::path& root) {
  for (Bucket& bucket : params_.buckets()) {  // all of it must come from the files
    ops_(FillArgs{.out = bucket.local_weight, .value = 99});
    ops_(FillArgs{.out = bucket.local_master, .value = 99});
  }
  Checkpoint(root).load(state(), Checkpoint::Take::everything, ops_);
  replicas_->all_gather_params();
  replicas_->wait_for_weights();
}

}  // namespace tera::test
