#pragma once
// One body of tests for every Comm: each rank calls it with its end of a group, on any backend. Values are checked
// against plain loops over the inputs of all ranks, which every rank can compute for itself.

#include "tera/comm/comm.h"
#include "tera/tensor/device.h"

namespace tera::test {

struct CommSubject {
  Comm& comm;
  Ops& ops;
  Device& device;
  bool rank_order = true;   // sums are made in the order of ranks, and their bits are known; else within rounding
  int small_rounds = 1000;  // rounds of check_small_calls
};

void check_reductions(const CommSubject& subject);   // all_reduce, reduce_scatter: dtypes, sizes, in place
void check_movements(const CommSubject& subject);    // all_gather, all_to_all, broadcast
void check_exchanges(const CommSubject& subject);    // rings, several at once, order of a pair
void check_tickets(const CommSubject& subject);      // what a call waits for, and what may wait for it
void check_splits(const CommSubject& subject);       // colors, keys, groups that work side by side
void check_small_calls(const CommSubject& subject);  // a thousand rounds
void check_rejected(const CommSubject& subject);     // calls that are wrong on their own rank
void check_unwinding(const CommSubject& subject);    // groups that live while an exception is in flight

inline void check_everything(const CommSubject& subject) {
  check_reductions(subject);
  check_movements(subject);
  check_exchanges(subject);
  check_tickets(subject);
  check_splits(subject);
  check_small_calls(subject);
  check_rejected(subject);
  check_unwinding(subject);
}

}  // namespace tera::test
