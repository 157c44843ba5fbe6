#pragma once
// The summary that commands print which write datasets.

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <string>

#include "tera/base/log.h"
#include "tera/data/preprocess/preprocess.h"
#include "tera/plan/memory_plan.h"

namespace tera {

inline void print_outputs(Log& log, std::span<const PreprocessReport::Output> outputs) {
  std::size_t width = 7;
  for (const auto& output : outputs) width = std::max(width, output.prefix.size());
  log.info("{:{}}  {:>11}  {:>14}  {:>7}  {:>10}", "dataset", width, "documents", "tokens", "type", "size");
  for (const auto& output : outputs)
    log.info("{:{}}  {:>11}  {:>14}  {:>7}  {:>10}", output.prefix, width, output.documents, output.tokens,
             name_of(output.type), format_bytes(output.tokens * static_cast<std::int64_t>(size_of(output.type))));
}

}  // namespace tera
