#pragma once
// A model small enough for finite differences, with no two sizes equal.

#include "tera/config/family.h"
#include "tera/models/spec.h"

namespace tera::test {

inline constexpr std::uint64_t dropout_seed = 3;

inline ModelShape tiny_shape() {
  ModelShape model;
  model.family = &family_named("llama");
  model.num_layers = 2;
  model.hidden = 24;
  model.ffn = 40;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 8;
  model.vocab = 29;
  model.padded_vocab = 32;
  model.max_positions = 20;
  model.window = {0, 0};
  model.rope = {.base = 100, .rotary_dim = 8, .interleaved = false, .scaling = {}};
  return model;
}

// The GPT-2 way: learned positions, LayerNorm, biases, no rope.
inline ModelShape tiny_gpt_shape() {
  ModelShape model = tiny_shape();
  model.family = &family_named("gpt");
  model.norm = NormKind::layer_norm;
  model.activation = Activation::gelu_tanh;
  model.positions = PositionKind::learned_absolute;
  model.kv_heads = model.heads;
  model.linear_bias = model.qkv_bias = true;
  model.tied_embeddings = true;
  return model;
}

}  // namespace tera::test
