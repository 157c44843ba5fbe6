#pragma once
// A CUDA graph: calls of one queue, captured once and replayed with one launch. Values that change between replays have
// to be in device memory; the arguments of the calls are those of the capture.

#include <cstddef>
#include <memory>
#include <string>

namespace tera {

class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
  virtual std::size_t size() const = 0;  // nodes of the graph
};

struct RecordingAttempt {
  std::unique_ptr<Recording> recording;  // null: capture failed
  std::string why_not;
};

}  // namespace tera
