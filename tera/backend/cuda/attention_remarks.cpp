#include "tera/backend/cuda/attention_remarks.h"

#include <fmt/core.h>

#include "tera/backend/cuda/attention_workspace.h"

namespace tera::cuda {
namespace {

template <class Args>
std::string line(const char* op, const Args& args, std::string_view cause) {
  const bool documents = static_cast<bool>(args.shape.q_offsets);
  const std::int64_t sequences = documents ? 1 : args.shape.batch;
  return fmt::format("{} of {} x {} queries, {} keys, N={} G={} D={} {}{}: {}\n", op, sequences,
                     args.q.dim(0) / sequences, args.k.dim(0) / sequences, args.q.dim(1), args.k.dim(1), args.q.dim(2),
                     name_of(args.q.dtype), documents ? " in documents" : "", cause);
}

void add_once(std::string& lines, const std::string& line) {
  if (lines.find(line) == std::string::npos) lines += line;
}

}  // namespace

std::string attention_without_cudnn(const PlannedCalls& calls, bool deterministic) {
  std::string lines;
  for (const AttentionArgs& args : calls.attentions)
    if (const std::string_view cause = why_not_cudnn(args); !cause.empty())
      add_once(lines, line("attention", args, cause));
  for (const AttentionBackArgs& args : calls.attention_backs)
    if (const std::string_view cause = why_not_cudnn(args, deterministic); !cause.empty())
      add_once(lines, line("attention_back", args, cause));
  return lines;
}

}  // namespace tera::cuda
