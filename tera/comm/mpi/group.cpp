#include "tera/comm/mpi/group.h"

namespace tera::mpi {

Group::Group(control::ControlGroup group)
    : ControlGroup(std::move(group)),
      tasks(max_tasks),
      lanes(max_tasks + 32 * members.size()),
      sent_to(members.size()),
      received_from(members.size()) {}

Task* Group::first_unfinished(std::uint64_t number) {
  for (std::uint64_t n = collected + 1; n <= number; ++n)
    if (!task(n).done.load(std::memory_order_acquire)) return &task(n);
  return nullptr;
}

void Group::collect() {
  while (collected < posted && task(collected + 1).done.load(std::memory_order_acquire)) {
    const Task& oldest = task(++collected);
    lanes_begin = (lanes_begin + oldest.lanes) % lanes.size();
    lanes_used -= oldest.lanes;
  }
}

bool Group::has_capacity(std::size_t wanted_tasks, std::size_t wanted_lanes) const {
  return posted - collected + wanted_tasks <= max_tasks && lanes_used + wanted_lanes <= lanes.size();
}

}  // namespace tera::mpi
