#include "tera/nn/offload_tags.h"

#include <array>

#include "tera/tensor/stash.h"

namespace tera {
namespace {

struct Row {
  bool OffloadShape::*module;
  Life life;
  std::string_view tag;
};

// Small tensors (statistics of norms and of the softmax, choices of experts) stay on the device.
constexpr std::array rows{Row{&OffloadShape::qkv_linear, Life::f_to_w, "attention.normed"},
                          Row{&OffloadShape::core_attn, Life::f_to_b, "attention.qkv"},
                          Row{&OffloadShape::core_attn, Life::f_to_b, "attention.qk"},
                          Row{&OffloadShape::core_attn, Life::f_to_b, "attention.all_qkv"},
                          Row{&OffloadShape::core_attn, Life::f_to_b, "attention.all_out"},
                          Row{&OffloadShape::attn_proj, Life::f_to_w, "attention.out"},
                          Row{&OffloadShape::qkv_linear, Life::f_to_w, "mla.normed"},
                          Row{&OffloadShape::core_attn, Life::f_to_b, "mla.q"},
                          Row{&OffloadShape::core_attn, Life::f_to_b, "mla.kv"},
                          Row{&OffloadShape::core_attn, Life::f_to_b, "mla.all_q"},
                          Row{&OffloadShape::core_attn, Life::f_to_b, "mla.all_kv"},
                          Row{&OffloadShape::core_attn, Life::f_to_b, "mla.all_out"},
                          Row{&OffloadShape::attn_proj, Life::f_to_w, "mla.out"},
                          Row{&OffloadShape::mlp_norm, Life::f_to_b, "layer.mid"},
                          Row{&OffloadShape::mlp_fc1, Life::f_to_w, "mlp.normed"},
                          Row{&OffloadShape::mlp_act, Life::f_to_b, "mlp.up"},
                          Row{&OffloadShape::mlp_fc2, Life::f_to_w, "mlp.act"},
                          Row{&OffloadShape::mlp_fc1, Life::f_to_w, "moe.normed"},
                          Row{&OffloadShape::mlp_act, Life::f_to_b, "moe.up"},
                          Row{&OffloadShape::mlp_act, Life::f_to_b, "moe.shared_up"},
                          Row{&OffloadShape::mlp_fc2, Life::f_to_w, "moe.act"},
                          Row{&OffloadShape::mlp_fc2, Life::f_to_w, "moe.shared_act"}};

}  // namespace

OffloadTags offload_tags(const OffloadShape& shape) {
  OffloadTags tags{.x = shape.attn_norm, .f_to_b = {}, .f_to_w = {}};
  for (const Row& row : rows)
    if (shape.*row.module) (row.life == Life::f_to_b ? tags.f_to_b : tags.f_to_w).push_back(row.tag);
  return tags;
}

}  // namespace tera
