#pragma once
// Copies between vectors of a test and tensors of any device.

#include <span>
#include <vector>

#include "tera/ops/ops.h"

namespace tera::test {

template <class T>
void upload(Ops& ops, const std::vector<T>& values, const Tensor& to) {
  ops.from_host(std::as_bytes(std::span(values)), to);
}

template <class T>
std::vector<T> download(Ops& ops, const Tensor& from) {
  std::vector<T> values(static_cast<std::size_t>(count(from.shape)));
  ops.to_host(from, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace tera::test
