#pragma once
// All work on tensors goes through here. Call the plain function; a backend implements the private do_ one, and can
// rely on the arguments having passed their check(). Backends: plan (checks and counts, touches no memory), cpu.

#include <cstddef>
#include <span>

#include "tera/ops/attention.h"
#include "tera/ops/copy.h"
#include "tera/ops/embedding.h"
#include "tera/ops/gemm.h"
#include "tera/ops/loss.h"
#include "tera/ops/norm.h"
#include "tera/ops/optim.h"
#include "tera/ops/pointwise.h"
#include "tera/ops/rope.h"

namespace tera {

class Ops {
 public:
  virtual ~Ops() = default;

  // clang-format off
  void gemm(const GemmArgs& args)                      { args.check(); do_gemm(args); }
  void column_sum(const ColumnSumArgs& args)           { args.check(); do_column_sum(args); }
  void norm(const NormArgs& args)                      { args.check(); do_norm(args); }
  void norm_back(const NormBackArgs& args)             { args.check(); do_norm_back(args); }
  void rope(const RopeArgs& args)                      { args.check(); do_rope(args); }
  void attention(const AttentionArgs& args)            { args.check(); do_attention(args); }
  void attention_back(const AttentionBackArgs& args)   { args.check(); do_attention_back(args); }
  void activation(const ActivationArgs& args)          { args.check(); do_activation(args); }
  void activation_back(const ActivationBackArgs& args) { args.check(); do_activation_back(args); }
  void dropout(const DropoutArgs& args)                { args.check(); do_dropout(args); }
  void embedding(const EmbeddingArgs& args)            { args.check(); do_embedding(args); }
  void embedding_back(const EmbeddingBackArgs& args)   { args.check(); do_embedding_back(args); }
  void cross_entropy(const CrossEntropyArgs& args)     { args.check(); do_cross_entropy(args); }
  void sum(const SumArgs& args)                        { args.check(); do_sum(args); }
  void sum_squares(const SumSquaresArgs& args)         { args.check(); do_sum_squares(args); }
  void clip(const ClipArgs& args)                      { args.check(); do_clip(args); }
  void adam(const AdamArgs& args)                      { args.check(); do_adam(args); }
  void sgd(const SgdArgs& args)                        { args.check(); do_sgd(args); }
  void copy(const CopyArgs& args)                      { args.check(); do_copy(args); }
  void fill(const FillArgs& args)                      { args.check(); do_fill(args); }
  // clang-format on

  // Between host memory and a dense tensor of this device; the host's bytes may be reused at once after from_host, and
  // are there when to_host returns.
  void from_host(std::span<const std::byte> host, const Tensor& tensor);
  void to_host(const Tensor& tensor, std::span<std::byte> host);

  // Memory for the backend's own needs (packed panels, partial sums), as much as WorkspaceRules asked for in the plan.
  virtual void bind_workspace(std::span<std::byte> workspace) = 0;

 private:
  virtual void do_gemm(const GemmArgs& args) = 0;
  virtual void do_column_sum(const ColumnSumArgs& args) = 0;
  virtual void do_norm(const NormArgs& args) = 0;
  virtual void do_norm_back(const NormBackArgs& args) = 0;
  virtual void do_rope(const RopeArgs& args) = 0;
  virtual void do_attention(const AttentionArgs& args) = 0;
  virtual void do_attention_back(const AttentionBackArgs& args) = 0;
  virtual void do_activation(const ActivationArgs& args) = 0;
  virtual void do_activation_back(const ActivationBackArgs& args) = 0;
  virtual void do_dropout(const DropoutArgs& args) = 0;
  virtual void do_embedding(const EmbeddingArgs& args) = 0;
  virtual void do_embedding_back(const EmbeddingBackArgs& args) = 0;
  virtual void do_cross_entropy(const CrossEntropyArgs& args) = 0;
  virtual void do_sum(const SumArgs& args) = 0;
  virtual void do_sum_squares(const SumSquaresArgs& args) = 0;
  virtual void do_clip(const ClipArgs& args) = 0;
  virtual void do_adam(const AdamArgs& args) = 0;
  virtual void do_sgd(const SgdArgs& args) = 0;
  virtual void do_copy(const CopyArgs& args) = 0;
  virtual void do_fill(const FillArgs& args) = 0;
  virtual void do_from_host(std::span<const std::byte> host, const Tensor& tensor) = 0;
  virtual void do_to_host(const Tensor& tensor, std::span<std::byte> host) = 0;
};

}  // namespace tera
