// The checks of expert ops: dispatch of rows, and grouped GEMM.

#include <limits>

#include "tera/ops/check.h"
#include "tera/ops/expert_rows.h"
#include "tera/ops/grouped_gemm.h"

namespace tera {
namespace {

using check::dense, check::dtype, check::float_dtype, check::same_shape, check::that;

void dense_i32(std::string_view op, std::string_view name, const Tensor& tensor, int rank) {
  dtype(op, name, tensor, DType::i32);
  that(tensor.shape.rank == rank, op, rank == 1 ? "sources and offsets have one dim" : "experts and places have two");
  dense(op, name, tensor);
}

void dense_like(std::string_view op, std::string_view name, const Tensor& tensor, DType type, const Shape& wanted) {
  dtype(op, name, tensor, type);
  same_shape(op, name, tensor, wanted);
  dense(op, name, tensor);
}

bool counts_fit_32_bits(std::int64_t items) { return items <= std::numeric_limits<std::int32_t>::max(); }

}  // namespace

void GroupRowsArgs::check() const {
  constexpr auto op = "group_rows";
  dense_i32(op, "experts", experts, 2);
  dense_i32(op, "offsets", offsets, 1);
  dense_i32(op, "sources", sources, 1);
  dense_like(op, "places", places, DType::i32, experts.shape);
  that(experts.dim(1) >= 1, op, "a token chooses one expert at least");
  that(groups() >= 1 && groups() <= max_router_experts, op, "offsets are of 1 to 1024 experts");
  that(counts_fit_32_bits(count(experts.shape)) && counts_fit_32_bits(sources.dim(0)), op,
       "choices and rows can be counted with 32 bits");
  that(first_expert >= 0 && counts_fit_32_bits(first_expert + groups()), op, "first_expert is not negative");
  that(capacity >= 0 && capacity <= sources.dim(0) / groups(), op, "sources have room for every expert's capacity");
  that(!weights || capacity > 0, op, "weights choose among rows only where there is a capacity");
  if (weights) dense_like(op, "weights", weights, DType::f32, experts.shape);
  if (overflow) dense_like(op, "overflow", overflow, DType::i32, shape(1));
}

void PermuteArgs::check() const {
  constexpr auto op = "permute";
  float_dtype(op, "x", x);
  that(x.shape.rank == 2, op, "x has two dims");
  dense(op, "x", x);
  dense_i32(op, "sources", sources, 1);
  dense_like(op, "y", y, x.dtype, shape(sources.dim(0), x.dim(1)));
  that(topk >= 1 && counts_fit_32_bits(topk) && counts_fit_32_bits(sources.dim(0)), op, "topk is at least 1");
}

void UnpermuteArgs::check() const {
  constexpr auto op = "unpermute";
  float_dtype(op, "x", x);
  that(x.shape.rank == 2, op, "x has two dims");
  dense(op, "x", x);
  dense_i32(op, "places", places, 2);
  dense_like(op, "y", y, x.dtype, shape(places.dim(0), x.dim(1)));
  if (residual) dense_like(op, "residual", residual, x.dtype, y.shape);
}

void GroupedGemmArgs::check() const {
  constexpr auto op = "grouped_gemm";
  float_dtype(op, "a", a);
  dtype(op, "b", b, a.dtype);
  float_dtype(op, "out", out);
  that(a.shape.rank == 2 && b.shape.rank == 3 && out.shape.rank == 2, op, "a and out have two dims, b has three");
  that(out.dtype == a.dtype || out.dtype == DType::f32, op, "out has the dtype of a, or f32");
  that(groups() >= 1 && counts_fit_32_bits(a.dim(0)), op, "there is one group at least, of rows counted with 32 bits");
  same_shape(op, "b", b, trans_b ? shape(groups(), n(), k()) : shape(groups(), k(), n()));
  same_shape(op, "out", out, shape(a.dim(0), n()));
  for (const auto& [name, tensor] : {std::pair{"a", &a}, {"b", &b}, {"out", &out}}) dense(op, name, *tensor);
  dense_like(op, "offsets", offsets, DType::i32, shape(groups() + 1));
}

void GroupedWeightGradientArgs::check() const {
  constexpr auto op = "grouped_weight_gradient";
  float_dtype(op, "a", a);
  dtype(op, "b", b, a.dtype);
  dtype(op, "out", out, DType::f32);
  that(a.shape.rank == 2 && b.shape.rank == 2 && out.shape.rank == 3, op, "a and b have two dims, out has three");
  that(groups() >= 1 && counts_fit_32_bits(a.dim(0)), op, "there is one group at least, of rows counted with 32 bits");
  same_shape(op, "b", b, shape(a.dim(0), n()));
  same_shape(op, "out", out, shape(groups(), m(), n()));
  for (const auto& [name, tensor] : {std::pair{"a", &a}, {"b", &b}, {"out", &out}}) dense(op, name, *tensor);
  dense_like(op, "offsets", offsets, DType::i32, shape(groups() + 1));
}

}  // namespace tera
