#pragma once
// A queue on the CPU that records calls as strictly as a CUDA graph: the arguments are those of the recording, whatever
// the host's variables are when it is replayed. A step that reads anything else from the host would compute something
// else.

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "tera/base/error.h"
#include "tera/ops/ops.h"

namespace tera::test {

class FrozenOps final : public Ops {
 public:
  explicit FrozenOps(std::unique_ptr<Ops> inner) : inner_(std::move(inner)), traits_(inner_->traits()) {
    traits_.asynchronous = true;  // as backends that can record are
  }

  int replayed = 0;      // recordings
  bool refuses = false;  // in the middle of the calls

  RecordingAttempt record_calls(const std::function<void()>& calls) override {
    auto recording = std::make_unique<Calls>(*this);
    recorded_ = &recording->calls;
    RecordingAttempt attempt;
    try {
      calls();
      attempt.recording = std::move(recording);
    } catch (const std::exception& error) {
      attempt.why_not = error.what();
    }
    recorded_ = nullptr;
    return attempt;
  }

  using Ops::finish;
  // Keeps few points unless more are reserved, so that a caller that forgets to reserve them fails.
  void finish(std::uint64_t id) override {
    require(id + kept_ > points_, "point {} is not among the last {}", id, kept_);
  }
  Ticket record() override { return {++points_, this}; }
  void reserve_tickets(std::size_t count) override { kept_ = std::max(kept_, count); }
  void wait(Ticket ticket) override {
    if (ticket.timeline != this) inner_->wait(ticket);
  }
  double milliseconds(Ticket from, Ticket to) override { return inner_->milliseconds(from, to); }
  const OpsTraits& traits() const override { return traits_; }
  void bind_workspace(std::span<std::byte> workspace) override { inner_->bind_workspace(workspace); }

 private:
  struct Calls final : Recording {
    explicit Calls(FrozenOps& of) : ops(of) {}
    void replay() override {
      ++ops.replayed;
      for (const auto& call : calls) call();
    }
    std::size_t size() const override { return calls.size(); }
    FrozenOps& ops;
    std::vector<std::function<void()>> calls;
  };

  template <class Call>
  void does(Call&& call) {
    if (!recorded_) return call();
    require(!refuses || recorded_->size() < 20, "this call cannot be recorded");
    recorded_->push_back(std::forward<Call>(call));
  }

  void do_gemm(const GemmArgs& args) override {
    does([this, args] { inner_->gemm(args); });
  }
  void do_column_sum(const ColumnSumArgs& args) override {
    does([this, args] { inner_->column_sum(args); });
  }
  void do_norm(const NormArgs& args) override {
    does([this, args] { inner_->norm(args); });
  }
  void do_norm_back(const NormBackArgs& args) override {
    does([this, args] { inner_->norm_back(args); });
  }
  void do_rope(const RopeArgs& args) override {
    does([this, args] { inner_->rope(args); });
  }
  void do_latent_heads(const LatentHeadsArgs& args) override {
    does([this, args] { inner_->latent_heads(args); });
  }
  void do_merge_attention(const MergeAttentionArgs& args) override {
    does([this, args] { inner_->merge_attention(args); });
  }
  void do_latent_heads_back(const LatentHeadsBackArgs& args) override {
    does([this, args] { inner_->latent_heads_back(args); });
  }
  void do_attention(const AttentionArgs& args) override {
    does([this, args] { inner_->attention(args); });
  }
  void do_attention_back(const AttentionBackArgs& args) override {
    does([this, args] { inner_->attention_back(args); });
  }
  void do_activation(const ActivationArgs& args) override {
    does([this, args] { inner_->activation(args); });
  }
  void do_activation_back(const ActivationBackArgs& args) override {
    does([this, args] { inner_->activation_back(args); });
  }
  void do_dropout(const DropoutArgs& args) override {
    does([this, args] { inner_->dropout(args); });
  }
  void do_group_rows(const GroupRowsArgs& args) override {
    does([this, args] { inner_->group_rows(args); });
  }
  void do_permute(const PermuteArgs& args) override {
    does([this, args] { inner_->permute(args); });
  }
  void do_unpermute(const UnpermuteArgs& args) override {
    does([this, args] { inner_->unpermute(args); });
  }
  void do_grouped_gemm(const GroupedGemmArgs& args) override {
    does([this, args] { inner_->grouped_gemm(args); });
  }
  void do_grouped_weight_gradient(const GroupedWeightGradientArgs& args) override {
    does([this, args] { inner_->grouped_weight_gradient(args); });
  }
  void do_embedding(const EmbeddingArgs& args) override {
    does([this, args] { inner_->embedding(args); });
  }
  void do_embedding_back(const EmbeddingBackArgs& args) override {
    does([this, args] { inner_->embedding_back(args); });
  }
  void do_cross_entropy(const CrossEntropyArgs& args) override {
    does([this, args] { inner_->cross_entropy(args); });
  }
  void do_cross_entropy_stats(const CrossEntropyStatsArgs& args) override {
    does([this, args] { inner_->cross_entropy_stats(args); });
  }
  void do_route(const RouteArgs& args) override {
    does([this, args] { inner_->route(args); });
  }
  void do_route_back(const RouteBackArgs& args) override {
    does([this, args] { inner_->route_back(args); });
  }
  void do_balance_loss(const BalanceLossArgs& args) override {
    does([this, args] { inner_->balance_loss(args); });
  }
  void do_expert_bias(const ExpertBiasArgs& args) override {
    does([this, args] { inner_->expert_bias(args); });
  }
  void do_sum(const SumArgs& args) override {
    does([this, args] { inner_->sum(args); });
  }
  void do_sum_squares(const SumSquaresArgs& args) override {
    does([this, args] { inner_->sum_squares(args); });
  }
  void do_clip(const ClipArgs& args) override {
    does([this, args] { inner_->clip(args); });
  }
  void do_scale_loss(const ScaleLossArgs& args) override {
    does([this, args] { inner_->scale_loss(args); });
  }
  void do_count_step(const CountStepArgs& args) override {
    does([this, args] { inner_->count_step(args); });
  }
  void do_adam(const AdamArgs& args) override {
    does([this, args] { inner_->adam(args); });
  }
  void do_sgd(const SgdArgs& args) override {
    does([this, args] { inner_->sgd(args); });
  }
  void do_copy(const CopyArgs& args) override {
    does([this, args] { inner_->copy(args); });
  }
  void do_fill(const FillArgs& args) override {
    does([this, args] { inner_->fill(args); });
  }
  void do_normal(const NormalArgs& args) override {
    does([this, args] { inner_->normal(args); });
  }
  void do_combine(const CombineArgs& args) override {
    does([this, args, sources = std::vector(args.sources.begin(), args.sources.end())] {
      CombineArgs kept = args;
      kept.sources = sources;
      inner_->combine(kept);
    });
  }
  void do_from_host(std::span<const std::byte> host, const Tensor& tensor) override {
    require(!recorded_, "bytes of the host's memory cannot be recorded");
    inner_->from_host(host, tensor);
  }
  void do_to_host(const Tensor& tensor, std::span<std::byte> host) override {
    require(!recorded_, "the host cannot wait for what is recorded");
    inner_->to_host(tensor, host);
  }

  std::unique_ptr<Ops> inner_;
  OpsTraits traits_;
  std::uint64_t points_ = 0;
  std::size_t kept_ = 4;
  std::vector<std::function<void()>>* recorded_ = nullptr;
};

}  // namespace tera::test
