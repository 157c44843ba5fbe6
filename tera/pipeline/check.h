#pragma once
// Simulates a pipeline's schedule on all ranks: proves that it does not deadlock and computes its time and buffers.
//
// What is posted when is in exchange.h. The simulation is as strict as any backend may behave: a transfer happens when
// both sides have posted it (a rendezvous), and on each rank transfers complete in the order of posting. A rank waits
// for the receive that its next action needs, and goes on while sends are pending; before an action that makes a result
// it waits until the chunk's previous result in the same direction has been sent, so one buffer for each is enough.
//
// Who waits for whom does not depend on time: a schedule that completes here cannot deadlock anywhere.

#include <string>
#include <vector>

#include "tera/pipeline/exchange.h"
#include "tera/pipeline/schedules.h"

namespace tera {

struct ChunkNeeds {
  Pools pools;
  // Buffers for inputs from other ranks, from the posting of the receive to the end of the action that reads it (which
  // copies x for B and dy for W, or keeps the buffer itself: then pools.f_to_b and pools.b_to_w more).
  int received_x = 0, received_dy = 0;
};

struct RankReport {
  std::vector<ChunkNeeds> chunks;
  int chunks_in_flight = 0;   // (chunk, microbatch) pairs between F and the end of W, at most
  std::vector<double> start;  // start time of each action
  double busy = 0;
};

struct ScheduleReport {
  std::vector<RankReport> ranks;
  double makespan = 0;
  double bubble = 0;  // the fraction of all ranks' time in which they wait
};

// Throws an Error unless on every rank and chunk the microbatches pass F, B, W (or F, BW; or only F) exactly once, each
// of the three in ascending order (sums of gradients then do not depend on the schedule), and no rank waits for ever:
// then the message names the ranks and the actions they stand at.
ScheduleReport check(const PipelineSchedule& schedule, const ActionCosts& costs = {});

// check() with the caller's exchanges in place of exchanges(schedule, costs).
ScheduleReport check(const PipelineSchedule& schedule, const ActionCosts& costs,
                     const std::vector<std::vector<Exchange>>& posts);

// One line per rank; each column is `unit` of time: F0 F1 B0-- .. with the chunk as a letter (F0a F0b) where there are
// several. An action that takes more columns is drawn on with '-', waiting is '.'.
std::string picture(const PipelineSchedule& schedule, const ActionCosts& costs = {}, double unit = 1);

}  // namespace tera
