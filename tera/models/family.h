#pragma once
// What a family of decoders calls its tensors in Hugging Face folders. All else about them is in ModelShape.

#include <string>
#include <vector>

#include "tera/config/model.h"

namespace tera {

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
};

FamilyNames gpt_names();
FamilyNames llama_names();
FamilyNames family_names(Arch arch);

}  // namespace tera
