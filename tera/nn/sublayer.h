#pragma once
// A sublayer: one step of the residual stream, the sum of one or more branches (branch.h), with norms around them.
//
//   x ──┬──────────────────────────────────────────────(+)── post-norm of the sum ── y       BERT: post_at sum
//       └─ norm ─┬─ branch ── post-norm ── dropout ─────┤                                     Llama: norm, one branch
//                └─ branch ── ...  ─────────────────────┘                                     Gemma 2: post_at branch
//
// Branches share the norm before them (GPT-J, Falcon, Cohere) or have one each (NeoX); without a norm they compute from
// x. The residual enters the last GEMM of a branch where nothing comes between: no post-norm, no dropout.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tera/base/rng.h"
#include "tera/nn/branch.h"
#include "tera/nn/norm.h"
#include "tera/nn/phased.h"
#include "tera/nn/tensor_parallel.h"

namespace tera {

struct BranchUse {
  std::string name;  // name of its random draws
  BranchSpec branch;
  std::optional<NormSpec> norm;  // replaces the sublayer's for this branch
};

enum class PostNorm : std::uint8_t { of_branch, of_sum };

struct SublayerSpec {
  std::optional<NormSpec> norm;       // norms what the branches compute from
  std::optional<NormSpec> post_norm;  // PostNorm::of_branch is for a single branch
  PostNorm post_at = PostNorm::of_branch;
  std::vector<BranchUse> branches;
  float dropout = 0;  // drops elements of what each branch adds
  std::uint64_t seed = 0;
  bool recompute_norm = false;  // what the branches compute from is made again in B
};

struct SublayerSaved final : Saved {
  struct Input {  // what branches with the same norm compute from
    NormStats stats;
    Tensor normed;    // [t,H]: none where it is not kept, and not made again yet
    Tensor gradient;  // [t,H], scratch of B
    Tensor addend;    // [t,H], scratch of B: a further branch's gradient, before it is added
  };
  struct OfBranch {
    std::unique_ptr<Saved> saved;
    Tensor dy;  // [t,H]: gradient of what the branch makes: dsum itself without dropout and a post-norm
  };
  std::vector<Input> inputs;
  std::vector<OfBranch> branches;
  Tensor before_post;  // [t,H]: what the post-norm norms
  NormStats post_stats;
  Tensor dsum;  // [t,H]: gradient of the sum of x and the branches: dy itself without a post-norm of the sum
};

class Sublayer final : public BlockOf<SublayerSaved>, public Phased {
 public:
  Sublayer(const SublayerSpec& spec, const BuildContext& context);
  const char* kind() const override { return kind_.c_str(); }
  std::unique_ptr<Saved> make_saved() const override;

  // Those of the branch where there is one; several run one after the other.
  int phases() const override { return branches_.size() == 1 ? branches_.front().branch->phases() : 1; }
  void forward_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& y) override;
  void backward_input_phase(int phase, Run& run, Saved& saved, const Tensor& x, const Tensor& dy,
                            const Tensor& dx) override;

 private:
  struct Tags {  // names of memory in plans; they live as long as the sublayer
    std::string stats, normed, dnormed, dropped, before_post, post_stats, dpost, sum;
  };
  struct UsedBranch {
    std::unique_ptr<Branch> branch;
    std::size_t input;  // index of its norm
    RngKey dropout_key;
    Tags tags;
  };
  class Input;

  void f(Run& run, SublayerSaved& saved, const Tensor& x, const Tensor& y) override;
  void b(Run& run, SublayerSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void w(Run& run, SublayerSaved& saved, const Tensor& dy) override;
  void f_phase(int phase, Run& run, SublayerSaved& saved, const Tensor& x, const Tensor& y) const;
  void b_phase(int phase, Run& run, SublayerSaved& saved, const Tensor& x, const Tensor& dy, const Tensor& dx) const;

  void forward_branches(Run& run, SublayerSaved& saved, const Tensor& x, const Tensor& y) const;
  void forward_branch(std::size_t index, int phase, Run& run, SublayerSaved& saved, const Tensor& x, const Tensor& y,
                      const Tensor& residual) const;
  void backward_branch(std::size_t index, int phase, Run& run, SublayerSaved& saved, const Tensor& x,
                       const Tensor& residual, const Tensor& dx) const;
  Tensor gradient_of_branch(const UsedBranch& used, Run& run, SublayerSaved& saved) const;
  void drop(const UsedBranch& used, Run& run, const Tensor& x, const Tensor& y, const Tensor& residual) const;

  const Norm* norm_of(std::size_t input) const { return norms_[input] ? &*norms_[input] : nullptr; }
  bool drops(const Run& run) const { return dropout_ > 0 && run.mb.training; }
  bool norms_branch() const { return post_norm_ && post_at_ == PostNorm::of_branch; }
  bool norms_sum() const { return post_norm_ && post_at_ == PostNorm::of_sum; }
  bool is_added_in_b(std::size_t index) const;         // a later branch has the same input
  bool completes_input_in_b(std::size_t index) const;  // no earlier branch has the same input

  std::string kind_;
  TensorParallel tp_;
  std::vector<std::optional<Norm>> norms_;  // by input; none: branches compute from x
  std::vector<UsedBranch> branches_;
  std::optional<Norm> post_norm_;
  PostNorm post_at_;
  float dropout_;
  bool recompute_norm_;
};

}  // namespace tera
