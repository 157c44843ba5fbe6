// Multi-token prediction (MTP): losses and gradients of a step against an independent model in double, without any of
// the program's parts; and what runs with MTP layers report, save and leave out.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tera/base/rng.h"
#include "tests/end_to_end/training_run.h"
#include "tests/support/fill.h"

namespace tera::test {
namespace {

using Rows = std::vector<std::vector<double>>;  // [rows][columns]

// A Llama, sequence by sequence.
class Reference {
 public:
  explicit Reference(const ModelShape& model) : model_(model) {}
  std::map<std::string, std::vector<double>> weights;  // [out,in] or [out]

  struct Sequence {
    std::vector<std::int32_t> tokens, targets;
    std::vector<std::vector<std::int32_t>> mtp_tokens, mtp_targets;  // by depth
  };
  // Sums over targets: the model's own loss, then that of each depth.
  std::vector<double> losses(const std::vector<Sequence>& batch) const {
    std::vector<double> sums(static_cast<std::size_t>(1 + model_.mtp_layers));
    for (const Sequence& sequence : batch) {
      Rows x = embed(sequence.tokens);
      for (std::int64_t i = 0; i < model_.num_layers; ++i) x = layer(x, prefix(i));
      Rows h = norm(x, "model.norm.weight");
      sums[0] += loss(h, sequence.targets);
      for (std::size_t depth = 0; depth + 1 < sums.size(); ++depth) {
        const std::string at = prefix(model_.num_layers + static_cast<std::int64_t>(depth));
        Rows joined = norm(embed(sequence.mtp_tokens[depth]), at + "enorm.weight");
        const Rows hidden = norm(h, at + "hnorm.weight");
        for (std::size_t i = 0; i < joined.size(); ++i)
          joined[i].insert(joined[i].end(), hidden[i].begin(), hidden[i].end());
        h = norm(layer(matmul(joined, at + "eh_proj.weight"), at), at + "shared_head.norm.weight");
        sums[depth + 1] += loss(h, sequence.mtp_targets[depth]);
      }
    }
    return sums;
  }

 private:
  static std::string prefix(std::int64_t layer) { return "model.layers." + std::to_string(layer) + "."; }

  Rows embed(const std::vector<std::int32_t>& tokens) const {
    const std::vector<double>& table = weights.at("model.embed_tokens.weight");
    Rows rows;
    for (const std::int32_t token : tokens)
      rows.emplace_back(table.begin() + token * model_.hidden, table.begin() + (token + 1) * model_.hidden);
    return rows;
  }

  Rows norm(const Rows& x, const std::string& name) const {
    const std::vector<double>& weight = weights.at(name);
    Rows y = x;
    for (auto& row : y) {
      double squares = 0;
      for (const double value : row) squares += value * value;
      const double rstd =
          1 / std::sqrt(squares / static_cast<double>(row.size()) + static_cast<double>(model_.norm_eps));
      for (std::size_t i = 0; i < row.size(); ++i) row[i] *= rstd * weight[i];
    }
    return y;
  }

  Rows matmul(const Rows& x, const std::string& name) const {
    const std::vector<double>& weight = weights.at(name);
    const std::size_t in = x[0].size(), out = weight.size() / in;
    Rows y(x.size(), std::vector<double>(out));
    for (std::size_t row = 0; row < x.size(); ++row)
      for (std::size_t o = 0; o < out; ++o)
        for (std::size_t i = 0; i < in; ++i) y[row][o] += x[row][i] * weight[o * in + i];
    return y;
  }

  void rotate(Rows& x, std::size_t heads) const {
    const auto size = static_cast<std::size_t>(model_.head_dim), half = size / 2;
    for (std::size_t row = 0; row < x.size(); ++row)
      for (std::size_t head = 0; head < heads; ++head)
        for (std::size_t i = 0; i < half; ++i) {
          const double angle = static_cast<double>(row) *
                               std::pow(model_.rope.base, -2.0 * static_cast<double>(i) / static_cast<double>(size));
          double &a = x[row][head * size + i], &b = x[row][head * size + half + i];
          const double rotated = a * std::cos(angle) - b * std::sin(angle);
          b = b * std::cos(angle) + a * std::sin(angle);
          a = rotated;
        }
  }

  Rows attend(const Rows& x, const std::string& at) const {
    const auto heads = static_cast<std::size_t>(model_.heads), groups = static_cast<std::size_t>(model_.kv_heads),
               size = static_cast<std::size_t>(model_.head_dim);
    Rows q = matmul(x, at + "self_attn.q_proj.weight"), k = matmul(x, at + "self_attn.k_proj.weight");
    const Rows v = matmul(x, at + "self_attn.v_proj.weight");
    rotate(q, heads);
    rotate(k, groups);
    Rows out(x.size(), std::vector<double>(heads * size));
    for (std::size_t row = 0; row < x.size(); ++row)
      for (std::size_t head = 0; head < heads; ++head) {
        const std::size_t group = head / (heads / groups);
        std::vector<double> probabilities(row + 1);
        double sum = 0;
        for (std::size_t seen = 0; seen <= row; ++seen) {
          double score = 0;
          for (std::size_t i = 0; i < size; ++i) score += q[row][head * size + i] * k[seen][group * size + i];
          sum += probabilities[seen] = std::exp(score / std::sqrt(static_cast<double>(size)));
        }
        for (std::size_t seen = 0; seen <= row; ++seen)
          for (std::size_t i = 0; i < size; ++i)
            out[row][head * size + i] += probabilities[seen] / sum * v[seen][group * size + i];
      }
    return matmul(out, at + "self_attn.o_proj.weight");
  }

  Rows feed_forward(const Rows& x, const std::string& at) const {
    Rows gate = matmul(x, at + "mlp.gate_proj.weight");
    const Rows up = matmul(x, at + "mlp.up_proj.weight");
    for (std::size_t row = 0; row < x.size(); ++row)
      for (std::size_t i = 0; i < up[row].size(); ++i) gate[row][i] *= up[row][i] / (1 + std::exp(-gate[row][i]));
    return matmul(gate, at + "mlp.down_proj.weight");
  }

  static Rows sum(Rows a, const Rows& b) {
    for (std::size_t row = 0; row < a.size(); ++row)
      for (std::size_t i = 0; i < a[row].size(); ++i) a[row][i] += b[row][i];
    return a;
  }
  Rows layer(const Rows& x, const std::string& at) const {
    const Rows mid = sum(x, attend(norm(x, at + "input_layernorm.weight"), at));
    return sum(mid, feed_forward(norm(mid, at + "post_attention_layernorm.weight"), at));
  }

  double loss(const Rows& h, const std::vector<std::int32_t>& targets) const {
    const Rows logits = matmul(h, model_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
    double all = 0;
    for (std::size_t row = 0; row < h.size(); ++row) {
      if (targets[row] < 0) continue;
      double sum = 0;
      for (const double logit : logits[row]) sum += std::exp(logit);
      all += std::log(sum) - logits[row][static_cast<std::size_t>(targets[row])];
    }
    return all;
  }

  const ModelShape& model_;
};

// Two sequences with a few masked targets; the MTP rows of depth k are the tokens and targets k positions after each
// row.
std::vector<Reference::Sequence> make_batch(const ModelShape& model, std::int64_t length) {
  std::vector<Reference::Sequence> batch(2);
  for (std::size_t s = 0; s < batch.size(); ++s) {
    Reference::Sequence& sequence = batch[s];
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i <= length; ++i)
      ids.push_back(static_cast<std::int32_t>(philox({9}, static_cast<std::uint64_t>(i), s)[0] %
                                              static_cast<std::uint32_t>(model.vocab)));
    sequence.tokens.assign(ids.begin(), ids.end() - 1);
    for (std::size_t i = 0; i < sequence.tokens.size(); ++i) sequence.targets.push_back(i % 6 == 4 ? -1 : ids[i + 1]);
    for (std::int64_t depth = 1; depth <= model.mtp_layers; ++depth) {
      auto &tokens = sequence.mtp_tokens.emplace_back(), &targets = sequence.mtp_targets.emplace_back();
      for (std::int64_t i = 0; i < length; ++i) {
        const auto seen = static_cast<std::size_t>(i + depth);
        tokens.push_back(i + depth < length ? sequence.tokens[seen] : 0);
        targets.push_back(i + depth < length ? sequence.targets[seen] : -1);
      }
    }
  }
  return batch;
}

struct StepOutputs {
  std::vector<double> losses;  // sums over targets: the model's own, then by depth
  std::map<std::string, std::vector<float>> gradients;
};

constexpr float scale = 0.01f;
constexpr std::array<float, 2> mtp_scales{0.03f, 0.02f};

StepOutputs run_step(const tera::Setup& setup, const std::vector<Reference::Sequence>& batch,
                     const Reference& reference) {
  Backend backend = make_backend(setup.config.dist);
  TrainingStep step(setup);
  step.bind(backend);
  for (const Param* param : step.params().by_name())
    for (const Part& part : param->spec.parts) {
      const auto& values = reference.weights.at(part.name);
      write_part(*backend.ops, *param, part, std::vector<float>(values.begin(), values.end()));
    }
  std::vector<std::int32_t> tokens, targets, positions, mtp_tokens, mtp_targets;
  std::vector<std::int64_t> row_ids;
  for (const Reference::Sequence& sequence : batch) {
    tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    targets.insert(targets.end(), sequence.targets.begin(), sequence.targets.end());
    for (std::size_t i = 0; i < sequence.tokens.size(); ++i) positions.push_back(static_cast<std::int32_t>(i));
  }
  for (std::size_t depth = 0; depth < mtp_scales.size(); ++depth)
    for (const Reference::Sequence& sequence : batch) {
      const auto &some = sequence.mtp_tokens[depth], &others = sequence.mtp_targets[depth];
      mtp_tokens.insert(mtp_tokens.end(), some.begin(), some.end());
      mtp_targets.insert(mtp_targets.end(), others.begin(), others.end());
    }
  row_ids.resize(tokens.size());
  step.load(0,
            {.tokens = tokens,
             .targets = targets,
             .positions = positions,
             .row_ids = row_ids,
             .mtp_tokens = mtp_tokens,
             .mtp_targets = mtp_targets},
            scale, 0, mtp_scales);
  step.forward_backward();
  const StepReading result = step.result(step.read_back());
  StepOutputs outputs{.losses = {result.number("loss_sum")}, .gradients = {}};
  for (std::size_t depth = 0; depth < mtp_scales.size(); ++depth)
    outputs.losses.push_back(result.number_at("mtp_loss_sums", depth));
  for (const Param* param : step.params().by_name())
    for (const Part& part : param->spec.parts)
      outputs.gradients[part.name] = read_part(*backend.ops, param->grad, part);
  return outputs;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Every tensor of the model and of both depths, along a random direction.
TEST(Mtp, LossesAndGradientsAreTheDefinition) {
  for (const char* tied : {"true", "false"}) {
    const tera::Setup setup =
        load_setup("tiny", {"model.mtp_num_layers=2", "train.global_batch_size=2", "train.eval_iters=0",
                            std::string("model.untie_embeddings_and_output_weights=") + tied});
    Reference reference(setup.model);
    std::uint64_t seed = 50;
    for (const ModelTensor& tensor : list_tensors(setup.model)) {
      const bool is_norm = tensor.shape.rank == 1;
      const Values values = normal_values(shape(count(tensor.shape)), ++seed, is_norm ? 0.2 : 0.3, is_norm ? 1 : 0);
      for (const double value : values) reference.weights[tensor.name].push_back(static_cast<float>(value));
    }
    const auto batch = make_batch(setup.model, setup.batch.seq_length);
    const StepOutputs outputs = run_step(setup, batch, reference);
    const std::vector<double> wanted = reference.losses(batch);
    ASSERT_EQ(outputs.losses.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(outputs.losses[i], wanted[i], 2e-6 * wanted[i]) << i;

    const auto total = [&] {
      const std::vector<double> sums = reference.losses(batch);
      return sums[0] * static_cast<double>(scale) + sums[1] * static_cast<double>(mtp_scales[0]) +
             sums[2] * static_cast<double>(mtp_scales[1]);
    };
    ASSERT_EQ(outputs.gradients.size(), reference.weights.size());
    for (const auto& [name, gradient] : outputs.gradients) {
      std::vector<double>& at = reference.weights.at(name);
      const std::vector<double> there = at, exact(gradient.begin(), gradient.end());
      const Values direction = normal_values(shape(static_cast<std::int64_t>(at.size())), ++seed);
      constexpr double step = 1e-5;
      const auto moved = [&](double by) {
        for (std::size_t i = 0; i < at.size(); ++i) at[i] = there[i] + by * direction[i];
        return total();
      };
      const double measured = (moved(step) - moved(-step)) / (2 * step), size = std::sqrt(dot(exact, exact));
      at = there;
      EXPECT_GT(size, 0) << name;
      EXPECT_NEAR(dot(exact, {direction.begin(), direction.end()}), measured, 1e-4 * size) << name;
    }
  }
}

// A loss factor of 0 gives the model without MTP layers, to the bit: their only effect on it is by gradients.
TEST(Mtp, WithoutAFactorTheModelIsTheSame) {
  const RunRecord plain = train_once("tiny"),
                  none = train_once("tiny", {"model.mtp_num_layers=2", "model.mtp_loss_scaling_factor=0"}),
                  some = train_once("tiny", {"model.mtp_num_layers=2", "model.mtp_loss_scaling_factor=0.5"});
  EXPECT_EQ(none.loss, plain.loss);
  EXPECT_EQ(none.grad_norm, plain.grad_norm);
  EXPECT_EQ(none.eval_loss, plain.eval_loss);
  EXPECT_TRUE(plain.mtp_loss.empty());
  EXPECT_EQ(some.loss[0], plain.loss[0]) << "the loss of the model alone";
  EXPECT_NE(some.loss[9], plain.loss[9]);
  ASSERT_EQ(some.mtp_loss.size(), 10u);
  EXPECT_NEAR(some.mtp_loss[0], std::log(61.0), 0.1);
  EXPECT_LT(some.mtp_loss[9], none.mtp_loss[9]);
}

// Mock data has no masked targets, so a mean of means is the mean.
TEST(Mtp, EitherReductionAndFp16TrainAlike) {
  const Overrides mtp{"model.mtp_num_layers=2", "model.mtp_loss_scaling_factor=0.5"};
  const RunRecord global = train_once("tiny", mtp),
                  microbatch = train_once("tiny", mtp + Overrides{"train.loss_reduction=microbatch"}),
                  half = train_once("tiny", mtp + Overrides{"mixed_precision.precision=fp16",
                                                            "mixed_precision.initial_loss_scale=4096"});
  ASSERT_EQ(global.mtp_loss.size(), 10u);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_NEAR(microbatch.loss[i], global.loss[i], 1e-5 * global.loss[i]);
    EXPECT_NEAR(microbatch.mtp_loss[i], global.mtp_loss[i], 1e-5 * global.mtp_loss[i]);
    EXPECT_NEAR(half.loss[i], global.loss[i], 2e-3 * global.loss[i]);
    EXPECT_NEAR(half.mtp_loss[i], global.mtp_loss[i], 2e-3 * global.mtp_loss[i]);
  }
}

// A depth has a layer, a projection and three norms; the tables are the model's, wherever they lie.
TEST(Mtp, ParametersAreCountedOnce) {
  for (const char* tied : {"true", "false"}) {
    const Overrides more{std::string("model.untie_embeddings_and_output_weights=") + tied};
    const auto parameters = [&](const Overrides& overrides) {
      return TrainingStep(load_setup("tiny", more + overrides)).count_parameters();
    };
    const std::int64_t layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32;
    EXPECT_EQ(parameters({"model.mtp_num_layers=2"}), parameters({}) + 2 * (layer + 2 * 32 * 32 + 3 * 32));
  }
}

}  // namespace
}  // namespace tera::test
