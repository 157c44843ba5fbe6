#include "tera/backend/mpi/group.h"

namespace tera::mpi {

Group::Group(std::string group_name, std::uint64_t group_id, std::vector<int> group_members, int own_rank)
    : name(std::move(group_name)),
      id(group_id),
      members(std::move(group_members)),
      rank(own_rank),
      tasks(most_tasks),
      lanes(most_tasks + 32 * members.size()),
      sent_to(members.size()),
      received_from(members.size()) {}

Task* Group::first_open(std::uint64_t number) {
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

bool Group::has_room(std::size_t wanted_tasks, std::size_t wanted_lanes) const {
  return posted - collected + wanted_tasks <= most_tasks && lanes_used + wanted_lanes <= lanes.size();
}

}  // namespace tera::mpi
