#pragma once
// Words shared by configs, ops and models: one enum per choice, with the names users write.

#include <cstdint>

#include "tera/base/enum_names.h"

namespace tera {

enum class NormKind : std::uint8_t { layer_norm, rms_norm };
enum class Activation : std::uint8_t { gelu, gelu_tanh, squared_relu, silu, swiglu, geglu, geglu_tanh };
enum class Mask : std::uint8_t { causal, full };

// Gated kinds take [T,2F], the gate's F columns first, and give act(gate) * up.
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
  static constexpr std::array values{
      std::pair{Activation::gelu, std::string_view("gelu")}, std::pair{Activation::gelu_tanh, std::string_view("gelu_tanh")},
      std::pair{Activation::squared_relu, std::string_view("squared_relu")},
      std::pair{Activation::silu, std::string_view("silu")}, std::pair{Activation::swiglu, std::string_view("swiglu")},
      std::pair{Activation::geglu, std::string_view("geglu")},
      std::pair{Activation::geglu_tanh, std::string_view("geglu_tanh")}};
};
template <>
struct EnumNames<Mask> {
  static constexpr std::array values{std::pair{Mask::causal, std::string_view("causal")},
                                     std::pair{Mask::full, std::string_view("full")}};
};

}  // namespace tera
