#pragma once
// Which processes share a machine or container. Host names do not say that: containers on several machines may have the
// same one.

#include <cstdint>

namespace tera {

// Equal exactly in processes of one machine in the same namespace: the mount namespace, which stands for the container
// and so for a memory limit, or the network namespace, in which processes reach each other as localhost.
std::uint64_t memory_domain_id();
std::uint64_t network_domain_id();

}  // namespace tera
