#pragma once
// A branch computes what a sublayer adds to the residual stream: attention, a feed-forward, ... It only computes, and
// owns what it keeps for backward; norms and their recomputation, residual, dropout and the sum of several branches are
// written once, in the sublayer around it (sublayer.h).

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include "tera/nn/block.h"

namespace tera {

class ParamStore;
struct TensorParallel;
struct ExpertParallel;
struct ContextParallel;

// What a branch computes from, t local rows; branches of a sublayer may share one. All that reads it calls get(), so
// whoever owns it decides what is kept and what is made again.
class BranchInput {
 public:
  // [t,H]: normed where the sublayer norms its input. B makes it again at the first call if F did not keep it; in W it
  // is always there.
  virtual Tensor get(Run& run) = 0;
  // [t,H], in B: memory for the gradient of what get() gives, taken from scratch at the first call.
  virtual Tensor gradient(Run& run) = 0;

 protected:
  ~BranchInput() = default;
};

// A branch whose F and B wait for other ranks is divided into phases there, as a block is (phased.h). All others have
// one.
class Branch {
 public:
  virtual ~Branch() = default;
  virtual const char* kind() const = 0;  // "attention": its name in profiles, and the prefix of tags
  virtual std::unique_ptr<Saved> make_saved() const = 0;
  virtual int phases() const { return 1; }

  // y = residual + f(input); residual may be none.
  virtual void forward(int phase, Run& run, Saved& saved, BranchInput& input, const Tensor& y,
                       const Tensor& residual) const = 0;
  // Makes input.gradient(), which is there after the ticket.
  virtual Ticket backward_input(int phase, Run& run, Saved& saved, BranchInput& input, const Tensor& dy) const = 0;
  virtual void backward_weight(Run& run, Saved& saved, BranchInput& input, const Tensor& dy) const = 0;
  // Whether W reads dy, rather than a copy of all ranks' rows that B has kept.
  virtual bool w_reads_dy(const Run&) const { return true; }
};

// Casts once; branches write f, b, w on their own struct. For a branch with one phase.
template <class S>
class BranchOf : public Branch {
 public:
  std::unique_ptr<Saved> make_saved() const override { return std::make_unique<S>(); }
  void forward(int, Run& run, Saved& saved, BranchInput& input, const Tensor& y, const Tensor& residual) const final {
    f(run, static_cast<S&>(saved), input, y, residual);
  }
  Ticket backward_input(int, Run& run, Saved& saved, BranchInput& input, const Tensor& dy) const final {
    return b(run, static_cast<S&>(saved), input, dy);
  }
  void backward_weight(Run& run, Saved& saved, BranchInput& input, const Tensor& dy) const final {
    w(run, static_cast<S&>(saved), input, dy);
  }

 protected:
  virtual void f(Run& run, S& saved, BranchInput& input, const Tensor& y, const Tensor& residual) const = 0;
  virtual Ticket b(Run& run, S& saved, BranchInput& input, const Tensor& dy) const = 0;
  virtual void w(Run& run, S& saved, BranchInput& input, const Tensor& dy) const = 0;
};

// What a branch is built in: the store that its parameters go to, and how it is sharded over ranks.
struct BuildContext {
  ParamStore& params;
  const TensorParallel& tp;
  const ExpertParallel& experts;
  const ContextParallel& cp;
};

// The description of a branch of any kind, as a value. A kind is a struct of plain data with
// `std::unique_ptr<Branch> build(const BuildContext&) const`; kinds may come from outside of this tree.
class BranchSpec {
 public:
  template <class Kind>
  requires(!std::same_as<Kind, BranchSpec> && std::is_object_v<Kind>)
      BranchSpec(Kind kind)  // NOLINT(google-explicit-constructor): a kind is a description of a branch
      : kind_(std::make_unique<Holder<Kind>>(std::move(kind))) {}
  BranchSpec(const BranchSpec& other) : kind_(other.kind_->clone()) {}
  BranchSpec(BranchSpec&&) noexcept = default;
  BranchSpec& operator=(BranchSpec other) noexcept {
    kind_ = std::move(other.kind_);
    return *this;
  }
  ~BranchSpec() = default;

  std::unique_ptr<Branch> build(const BuildContext& context) const { return kind_->build(context); }

  // The description if it is of this kind, else null.
  template <class Kind>
  const Kind* as() const {
    const auto* holder = dynamic_cast<const Holder<Kind>*>(kind_.get());
    return holder ? &holder->kind : nullptr;
  }
  template <class Kind>
  Kind* as() {
    return const_cast<Kind*>(std::as_const(*this).template as<Kind>());
  }

 private:
  struct AnyKind {
    virtual ~AnyKind() = default;
    virtual std::unique_ptr<AnyKind> clone() const = 0;
    virtual std::unique_ptr<Branch> build(const BuildContext& context) const = 0;
  };
  template <class Kind>
  struct Holder final : AnyKind {
    explicit Holder(Kind of) : kind(std::move(of)) {}
    std::unique_ptr<AnyKind> clone() const override { return std::make_unique<Holder>(kind); }
    std::unique_ptr<Branch> build(const BuildContext& context) const override { return kind.build(context); }
    Kind kind;
  };
  std::unique_ptr<AnyKind> kind_;
};

}  // namespace tera
