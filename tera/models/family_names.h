#pragma once
// The tensor names of a family of decoders in Hugging Face folders.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tera {

// Names after a layer's prefix. Weights of expert e are expert + e + "." + gate, up and down.
struct ExpertNames {
  std::string router;  // its bias is router + ".e_score_correction_bias"
  std::string expert;
  std::string gate, up, down;
  std::string shared;  // the shared expert's weights are shared + "." + gate_proj, up_proj and down_proj
  std::string shared_gate;
  // As transformers 5 holds them, all experts of a layer in one tensor. Full names, without ".weight".
  std::string fused_router, fused_gate_up, fused_down;  // [E,H], [E,2F,H], [E,H,F]
};

// Names of multi-head latent attention, after a layer's prefix.
struct MlaNames {
  std::string q;  // without q_lora
  std::string q_down, q_norm, q_up;
  std::string kv_down, kv_norm, kv_up;
};

// Names of an MTP layer, after its prefix, beside those of an ordinary layer.
struct MtpNames {
  std::string embedding_norm = "enorm", hidden_norm = "hnorm", project = "eh_proj", final_norm = "shared_head.norm";
  std::string embedding = "embed_tokens", head = "shared_head.head";  // files hold copies of the model's own
};

struct FamilyNames {
  std::string embedding, positions;                 // full names
  std::string layer;                                // prefix of layer i is layer + i + "."
  std::string attention_norm, out, mlp_norm, down;  // after the layer's prefix
  std::vector<std::string> qkv;                     // three names, or one when files hold them fused
  std::string q_norm, k_norm;
  std::vector<std::string> gated_up;  // gate and up; empty: the family has no gated activation
  std::string up;
  std::string final_norm, head;  // full names
  bool transposed = false;       // weights of linear layers are stored [in,out]
  std::optional<MlaNames> mla;
  std::optional<ExpertNames> experts;
  MtpNames mtp{};
};

// The layer of the tensor of this name; negative: it is of no layer.
std::int64_t layer_of(const FamilyNames& names, std::string_view tensor);
// A tensor that every MTP layer has, and no other layer.
std::string mtp_mark(const FamilyNames& names, std::int64_t layer);

}  // namespace tera
