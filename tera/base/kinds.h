#pragma once
// Enums shared by configs, ops and models, with the names that users write.

#include <cstdint>

#include "tera/base/enum_names.h"

namespace tera {

enum class NormKind : std::uint8_t { layer_norm, rms_norm };
enum class Activation : std::uint8_t { gelu, gelu_tanh, squared_relu, silu, swiglu, geglu, geglu_tanh };
enum class Mask : std::uint8_t { causal, full };
enum class ScoreFunction : std::uint8_t { softmax, sigmoid };  // turns a router's logits into scores
enum class LrDecayStyle : std::uint8_t { constant, linear, cosine, inverse_square_root, wsd };
enum class WsdDecayStyle : std::uint8_t { exponential, linear, cosine, minus_sqrt };

// Gated kinds (GLU) take [T,2F], the gate's F columns first, and give act(gate) * up.
constexpr bool is_gated(Activation kind) {
  return kind == Activation::swiglu || kind == Activation::geglu || kind == Activation::geglu_tanh;
}

template <>
struct EnumNames<NormKind> {
  static constexpr std::array values{std::pair{NormKind::layer_norm, std::string_view("LayerNorm")},
                                     std::pair{NormKind::rms_norm, std::string_view("RMSNorm")}};
};
template <>
struct EnumNames<Activation> {
  static constexpr std::array values{std::pair{Activation::gelu, std::string_view("gelu")},
                                     std::pair{Activation::gelu_tanh, std::string_view("gelu_tanh")},
                                     std::pair{Activation::squared_relu, std::string_view("squared_relu")},
                                     std::pair{Activation::silu, std::string_view("silu")},
                                     std::pair{Activation::swiglu, std::string_view("swiglu")},
                                     std::pair{Activation::geglu, std::string_view("geglu")},
                                     std::pair{Activation::geglu_tanh, std::string_view("geglu_tanh")}};
};
template <>
struct EnumNames<Mask> {
  static constexpr std::array values{std::pair{Mask::causal, std::string_view("causal")},
                                     std::pair{Mask::full, std::string_view("full")}};
};
template <>
struct EnumNames<ScoreFunction> {
  static constexpr std::array values{std::pair{ScoreFunction::softmax, std::string_view("softmax")},
                                     std::pair{ScoreFunction::sigmoid, std::string_view("sigmoid")}};
};
template <>
struct EnumNames<LrDecayStyle> {
  static constexpr std::array values{
      std::pair{LrDecayStyle::constant, std::string_view("constant")},
      std::pair{LrDecayStyle::linear, std::string_view("linear")},
      std::pair{LrDecayStyle::cosine, std::string_view("cosine")},
      std::pair{LrDecayStyle::inverse_square_root, std::string_view("inverse-square-root")},
      std::pair{LrDecayStyle::wsd, std::string_view("WSD")}};
};
template <>
struct EnumNames<WsdDecayStyle> {
  static constexpr std::array values{std::pair{WsdDecayStyle::exponential, std::string_view("exponential")},
                                     std::pair{WsdDecayStyle::linear, std::string_view("linear")},
                                     std::pair{WsdDecayStyle::cosine, std::string_view("cosine")},
                                     std::pair{WsdDecayStyle::minus_sqrt, std::string_view("minus_sqrt")}};
};

}  // namespace tera
