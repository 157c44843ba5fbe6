#pragma once
// Parameters. A block asks for them when it is built; ParamStore alone owns their memory.
//
// Memory is flat, so that the optimizer runs over few long ranges. All flat tensors share one numbering of elements:
//
//   weight (compute dtype)  [ decayed | not decayed | frozen ]
//   master, grad (f32)      [ decayed | not decayed ]             in fp32 runs master is weight
//
// Each parameter begins on a multiple of `alignment` elements; the gaps stay zero.

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tera/tensor/arena.h"

namespace tera {

class Ops;

struct Init {
  enum class Kind : std::uint8_t { zeros, ones, normal };
  Kind kind = Kind::zeros;
  float std = 0;
  bool padding = false;  // also draw rows behind those that the part names (vocabulary padding); else they are zero
};

// Which rows of a fused parameter are which tensor of the outside world.
struct Part {
  std::string name;  // as in Hugging Face, e.g. model.layers.0.mlp.gate_proj.weight
  Shape global;      // [out,in] or [out]
  std::int64_t local_row = 0;
  bool transposed = false;  // files hold [in,out] (GPT-2)
};

struct ParamSpec {
  std::string name;
  Shape shape;
  std::vector<Part> parts;  // in order of rows; rows behind the last part are padding
  Init init;
  bool decay = true;  // weight decay applies
  bool trainable = true;
};

struct Param {
  ParamSpec spec;
  Tensor value;             // what compute reads
  Tensor master;            // f32; none when frozen
  Tensor grad;              // f32, accumulates; none when frozen
  std::int64_t offset = 0;  // in the flat numbering
};

// A value that is computed once and never trained, e.g. the table of RoPE angles.
struct Constant {
  std::string name;
  Shape shape;
  std::vector<double> arguments;  // all that fill depends on; constants equal in name, shape and arguments are one
  std::function<void(std::span<float>)> fill;
  Tensor value;  // f32
};

class ParamStore {
 public:
  static constexpr std::int64_t alignment = 128;  // elements

  // Parameters are not trained when a pattern in `freeze` matches their name, or patterns match all of their parts.
  explicit ParamStore(DType compute, std::vector<std::string> freeze = {});
  ParamStore(const ParamStore&) = delete;
  ParamStore& operator=(const ParamStore&) = delete;

  Param& add(ParamSpec spec);  // the reference stays valid
  Constant& add_constant(Constant constant);
  DType compute() const { return compute_; }

  // Numbers the elements; after the last add() and before bind(). UserError when a freeze pattern matches nothing, or
  // some parts of a parameter but not all.
  void lay_out();

  // Takes memory for everything. Called once with measuring arenas, once with real ones. Without gradients (inference)
  // `grads` and `masters` stay untouched.
  struct Memory {
    Arena& weights;
    Arena& constants;
    Arena* masters = nullptr;
    Arena* grads = nullptr;
  };
  void bind(const Memory& memory);

  // Draws initial values; each is a function of seed, part name and element alone. Fills the constants.
  void initialize(Ops& ops, std::uint64_t seed);
  void fill_constants(Ops& ops);

  std::span<Param* const> by_name() const { return by_name_; }
  Param& find(const std::string& name);  // throws if there is none
  std::int64_t count_elements() const;   // of all parameters, padding included

  // Flat ranges of trained parameters, with and without decay.
  struct Group {
    Tensor master, grad, copy;  // copy: the compute form, none when compute is f32
    bool decay;
    std::int64_t begin, end;
  };
  std::span<const Group> groups() const { return groups_; }
  std::int64_t trained_elements() const { return trained_; }

 private:
  void check_freeze() const;
  std::vector<Group> make_groups(const Tensor& weights, const Tensor& masters, const Tensor& grads) const;

  DType compute_;
  std::vector<std::string> freeze_;
  std::deque<Param> params_;
  std::deque<Constant> constants_;
  std::vector<Param*> by_name_;
  std::vector<Group> groups_;
  std::int64_t decayed_ = 0, trained_ = 0, total_ = 0;  // ends of the three ranges
};

// Writes one part's values, given in [out,in] order, into the rows of the parameter where it lives.
void write_part(Ops& ops, const Param& param, const Part& part, std::span<const float> values);
// Reads a part's rows out of a parameter's value, master copy or gradient.
std::vector<float> read_part(Ops& ops, const Tensor& from, const Part& part);

}  // namespace tera
