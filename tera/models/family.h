#pragma once
// What a family of decoders calls its tensors in Hugging Face folders. All else about them is in ModelShape.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tera/config/model.h"

namespace tera {

// Behind a layer's prefix. Weights of expert e are expert + e + "." + gate, up and down.
struct ExpertNames {
  std::string router;  // its bias is router + ".e_score_correction_bias"
  std::string expert;
  std::string gate, up, down;
  std::string shared;  // the shared expert's weights are shared + "." + gate_proj, up_proj and down_proj
  std::string shared_gate;
  // As transformers 5 holds them, all experts of a layer in one tensor. Whole names, without ".weight".
  std::string fused_router, fused_gate_up, fused_down;  // [E,H], [E,2F,H], [E,H,F]
};

// Of latent attention, behind a layer's prefix.
struct MlaNames {
  std::string q;  // where queries have no latent
  std::string q_down, q_norm, q_up;
  std::string kv_down, kv_norm, kv_up;
};

// Of a layer that predicts further ahead, behind its prefix, beside the names of an ordinary layer.
struct MtpNames {
  std::string embedding_norm = "enorm", hidden_norm = "hnorm", project = "eh_proj", final_norm = "shared_head.norm";
  std::string embedding = "embed_tokens", head = "shared_head.head";  // files hold the model's own once more
};

struct FamilyNames {
  std::string embedding, positions;                 // whole names
  std::string layer;                                // prefix of layer i is layer + i + "."
  std::string attention_norm, out, mlp_norm, down;  // behind the layer's prefix
  std::vector<std::string> qkv;                     // three names, or one when files hold them fused
  std::string q_norm, k_norm;
  std::vector<std::string> gated_up;  // gate and up; empty: the family has no gated activation
  std::string up;
  std::string final_norm, head;  // whole names
  bool transposed = false;       // weights of linear layers are stored [in,out]
  std::optional<MlaNames> mla;
  std::optional<ExpertNames> experts;
  MtpNames mtp{};
};

// The layer that a tensor of this name is of; negative: it is of none.
std::int64_t layer_of(const FamilyNames& names, std::string_view tensor);
// A tensor that every layer that predicts further ahead has, and no other layer.
std::string mtp_mark(const FamilyNames& names, std::int64_t layer);

FamilyNames gpt_names();
FamilyNames llama_names();
FamilyNames mixtral_names();
FamilyNames qwen3_moe_names();
FamilyNames deepseek_names();
FamilyNames family_names(Arch arch);

}  // namespace tera
