// A custom training loop, from the parts: a model, its memory plan, the pipeline engine that runs F, B and W, an
// optimizer. The data are synthetic, and the learning rate follows a rule that no config has, from the gradients.

#include <tera/backend/plan/plan_ops.h>
#include <tera/models/build.h>
#include <tera/optim/optimizer.h>
#include <tera/pipeline/pipeline.h>
#include <tera/setup/resolve.h>
#include <tera/train/backend.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <vector>

using namespace tera;

int main() {
  constexpr auto yaml =
      "{model: {arch: llama, num_layers: 2, hidden_size: 64, num_attention_heads: 4, "
      "num_query_groups: 2, vocab_size: 128}, train: {seq_length: 32}}";
  const ModelShape model = resolve(load_config_text(yaml, "train_loop.cpp").config, Purpose::inspect).model;
  constexpr std::int64_t batch = 16, length = 32, rows = batch * length, vocab = 128;
  ParamStore params(DType::f32);
  const Blocks blocks = build_blocks(make_spec(model, /*seed=*/1), params);
  params.lay_out();
  Optimizer optimizer({.weight_decay = 0.1, .clip_grad = 1}, params);
  const Stage stage{.chunks = {blocks}, .training = plan_alone(one_stage(1)), .hidden = model.hidden};
  Backend backend = make_backend({.threads = 2});
  Ops& ops = *backend.ops;

  // Memory. The tensors that live as long as the run are taken by one function, called twice: to measure, then to bind.
  MicroBatch mb{.batch = batch};
  const auto take_state = [&](Arena& arena) {
    params.bind({.weights = arena, .constants = arena, .masters = &arena, .grads = &arena});
    optimizer.bind(arena);
    for (Tensor* ids : {&mb.tokens, &mb.targets, &mb.positions}) *ids = arena.take(shape(rows), DType::i32, "ids");
    mb.token_loss = arena.take(shape(rows), DType::f32, "losses");
    mb.loss_scale = arena.take(shape(1), DType::f32, "scale");
  };
  Arena measured = Arena::measuring();
  take_state(measured);
  PlanOps plan(*backend.rules);  // a rehearsal: shapes are checked, bytes added up, nothing is computed
  StageMemory rehearsed = StageMemory::measuring(stage);
  Pipeline(plan, stage, rehearsed).step({&mb, 1});
  optimizer.prepare(plan, 0, 1);
  optimizer.step(plan);
  Arena state(backend.device->allocate(measured.peak()), "state", backend.device->is_host());
  take_state(state);
  StageMemory memory = rehearsed.allocate_on(*backend.device);
  ops.bind_workspace(backend.device->allocate(plan.workspace_peak()));
  Pipeline pipeline(ops, stage, memory);
  params.initialize(ops, /*seed=*/1);

  // Each sequence counts up by its own stride. The rate follows the gradients: up when two successive ones agree.
  std::vector<std::int32_t> tokens(rows), targets(rows), positions(rows);
  std::vector<float> losses(rows), scale{1.0f / rows}, gradient(vocab * model.hidden), previous(gradient);
  ops.from_host(std::as_bytes(std::span(scale)), mb.loss_scale);
  double loss = 0, lr = 1e-3;
  for (std::int64_t step = 1; step <= 200; ++step) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t sequence = step * batch + row / length, position = row % length,
                         stride = 1 + sequence * 7 % 11;
      positions[row] = static_cast<std::int32_t>(position);
      tokens[row] = static_cast<std::int32_t>((sequence * 5 + position * stride) % vocab);
      targets[row] = static_cast<std::int32_t>((tokens[row] + stride) % vocab);
    }
    ops.from_host(std::as_bytes(std::span(tokens)), mb.tokens);
    ops.from_host(std::as_bytes(std::span(targets)), mb.targets);
    ops.from_host(std::as_bytes(std::span(positions)), mb.positions);
    pipeline.step({&mb, 1});
    ops.to_host(mb.token_loss, std::as_writable_bytes(std::span(losses)));
    ops.to_host(params.find("model.embed_tokens.weight").grad, std::as_writable_bytes(std::span(gradient)));
    loss = std::reduce(losses.begin(), losses.end(), 0.0) / rows;
    const double together = std::inner_product(gradient.begin(), gradient.end(), previous.begin(), 0.0);
    lr = std::clamp(lr * (together > 0 ? 1.05 : 0.9), 1e-4, 1e-2);
    optimizer.prepare(ops, lr, step);
    optimizer.step(ops);
    previous.swap(gradient);
    if (step % 20 == 0 || step == 1) std::printf("step %3ld  loss %.4f  lr %.5f\n", step, loss, lr);
  }
  return loss < 2 ? 0 : 1;  // guessing gives log(128) = 4.85
}
