#pragma once
// The weights of a checkpoint, for whoever wants them whole or in boxes.

#include "tera/checkpoint/checkpoint.h"
#include "tera/checkpoint/weight_source.h"

namespace tera {

class CheckpointWeights final : public WeightSource {
 public:
  // The checkpoint outlives it. With `masters`, fp32 master weights take the place of weights where there are any.
  CheckpointWeights(const Checkpoint& checkpoint, const ModelShape& model, bool masters = false);

  const std::map<std::string, Entry>& tensors() const override { return tensors_; }
  void read(const std::string& name, const WeightBox& box, std::span<std::byte> out) const override;
  std::string where() const override { return checkpoint_.folder().string(); }

 private:
  const Checkpoint& checkpoint_;
  mutable CheckpointReader reader_;  // keeps files open
  std::map<std::string, Entry> tensors_;
  std::map<std::string, std::string> sources_;  // names in the checkpoint
  std::map<std::string, bool> transposed_;      // where the files of version 1 are
};

}  // namespace tera
