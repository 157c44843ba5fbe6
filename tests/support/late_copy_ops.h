#pragma once
// A CPU backend whose copies beside the queue happen as late as they may: when a caller waits for them. Code that does
// not wait reads the previous values, or overwrites what should have been copied.

#include <cstring>
#include <vector>

#include "tera/backend/cpu/cpu_ops.h"
#include "tera/ops/copy.h"

namespace tera::test {

class LateCopyOps final : public cpu::CpuOps {
 public:
  using CpuOps::CpuOps;
  std::size_t copies_to_host() const { return to_host_.posted.size(); }
  std::size_t copies_from_host() const { return from_host_.posted.size(); }

 private:
  struct Stream final : Timeline {
    explicit Stream(bool up) : to_host(up) {}
    void finish(std::uint64_t id) override {
      while (done < id) {
        const HostCopyArgs& copy = posted[done];
        for (const Ticket ticket : {copy.after, copy.and_after})
          if (ticket.timeline && ticket.timeline != this) ticket.timeline->finish(ticket.id);
        ++done;
        if (to_host)
          std::memcpy(copy.host.data(), copy.tensor.data, copy.host.size());
        else
          std::memcpy(copy.tensor.data, copy.host.data(), copy.host.size());
      }
    }
    CopyPoints post(const HostCopyArgs& copy) {
      posted.push_back(copy);
      return {{posted.size() - 1, this}, {posted.size(), this}};
    }
    bool to_host;
    std::vector<HostCopyArgs> posted;
    std::size_t done = 0;
  };
  CopyPoints do_to_host_overlapped(const HostCopyArgs& args) override { return to_host_.post(args); }
  CopyPoints do_from_host_overlapped(const HostCopyArgs& args) override { return from_host_.post(args); }

  Stream to_host_{true}, from_host_{false};
};

}  // namespace tera::test
