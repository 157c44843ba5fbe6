#pragma once
// The weights of a checkpoint as a WeightSource.

#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/weight_source.h"

namespace tera {

class CheckpointWeights final : public WeightSource {
 public:
  // The checkpoint outlives this. With `masters`, fp32 master weights replace weights where they are stored.
  CheckpointWeights(const Checkpoint& checkpoint, const ModelShape& model, bool masters = false);

  const std::map<std::string, Entry>& tensors() const override { return tensors_; }
  void read(const std::string& name, const WeightBox& box, std::span<std::byte> out) const override;
  std::string where() const override { return checkpoint_.folder().string(); }

 private:
  const Checkpoint& checkpoint_;
  mutable CheckpointReader reader_;  // keeps files open
  std::map<std::string, Entry> tensors_;
  std::map<std::string, std::string> sources_;  // names in the checkpoint
  std::map<std::string, bool> transposed_;      // whether the stored tensor is [in,out]: version 1
};

}  // namespace tera
