// Which processes share a machine: children of this one do, until they leave one of its namespaces.

#include "tera/base/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

namespace tera::test {
namespace {

using Places = std::pair<std::uint64_t, std::uint64_t>;  // memory domain, network domain

Places places() { return {memory_domain_id(), network_domain_id()}; }

// The identities of a child that leaves these namespaces; this process's network is never 0.
Places places_of_child(int leaves) {
  int ends[2] = {};
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    Places found{0, 0};
    if (leaves == 0 || ::unshare(leaves) == 0) found = places();
    const ssize_t written = ::write(ends[1], &found, sizeof(found));
    ::_exit(written == sizeof(found) ? 0 : 1);
  }
  Places found{0, 0};
  EXPECT_EQ(::read(ends[0], &found, sizeof(found)), static_cast<ssize_t>(sizeof(found)));
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  return found;
}

TEST(Machine, ProcessesOfOnePlace) {
  EXPECT_NE(network_domain_id(), 0u);
  EXPECT_EQ(places_of_child(0), places());
}

// Containers of the same name differ in their namespaces.
TEST(Machine, NamespacesDistinguishContainers) {
  const Places apart = places_of_child(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS);
  if (apart == Places{0, 0}) GTEST_SKIP() << "this system does not let a process leave its namespaces";
  EXPECT_NE(apart.first, memory_domain_id());
  EXPECT_NE(apart.second, network_domain_id());
}

}  // namespace
}  // namespace tera::test
