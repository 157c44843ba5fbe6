#pragma once
// Calls of one queue, recorded once and played again with one call of the host's: a CUDA graph. What changes from one
// time to the next has to lie in the device's memory; the arguments of the calls are those of the recording.

#include <cstddef>
#include <memory>
#include <string>

namespace tera {

class Recording {
 public:
  virtual ~Recording() = default;
  virtual void play() = 0;
  virtual std::size_t size() const = 0;  // pieces of work in it
};

struct RecordingAttempt {
  std::unique_ptr<Recording> recording;  // none: it could not be made
  std::string why_not;
};

}  // namespace tera
