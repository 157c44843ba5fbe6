#pragma once
// The main kernel of hopper_attention_back.cu.
//
// Keys of a sequence are cut into tiles of 128 rows, queries into tiles of 128 (heads of 64 channels) or 64 (of 128). A
// block of threads keeps a tile of keys, with the sums of their gradients dk and dv in registers, and goes through the
// tiles of queries that see it, of all query heads that share the keys. For each pair of tiles:
//
//   S^T = K Q^T      dP^T = V dO^T      P^T = exp(S^T - lse)      dS^T = P^T (dP^T - delta)
//   dv += P^T dO     dk += dS^T Q       dq += dS K
//
// Two warpgroups have 64 keys each, so P^T and dS^T come as registers that the next product takes as its left operand;
// dS also goes through shared memory, from where each warpgroup reads the keys of both for its half of dq: 64 queries,
// or 64 channels. Of the third warpgroup one thread has the copy engine fetch, another has it add dq to memory.
//
// The order in which blocks add to dq is fixed, and such that they hardly wait for each other. A unit of work is two
// tiles of keys, u from the end and u from the start, so that all units take equally long:
//
//   the late tiles, M-1, M-2, ..., go through their queries upwards: tile n comes to a tile of queries a step or two
//   after tile n + 1 did. They add in this order, which is that of the units.
//   the early tiles, 0, 1, ..., go downwards from the last queries: tile n begins some steps for each query head after
//   tile n - 1, and takes as many less for each head, so it always stays behind. Again the order of the units.
//
// Each kind has sums of its own, which become dq in the end. Units are taken by number, so that nobody waits for one
// that has not begun.
//
// Where there would be few units, the query heads that share keys are dealt to several of them (plan.shares). Each
// leaves its sums of dk and dv in memory as fp32, and they are added up in the end.

#include "tera/backend/cuda/kernels/hopper.cuh"
#include "tera/backend/cuda/kernels/hopper_attention_workspace.h"
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels::attention_back {

constexpr int warpgroup = 128, threads = 3 * warpgroup, consumers = 2 * warpgroup;
constexpr int keys_rows = hopper_key_rows;
constexpr int panel_channels = 64;                 // tiles lie in panels: 128 bytes of each of their rows
constexpr int keys_panel_bytes = keys_rows * 128;  // of keys, of values and of scores
constexpr int tile_floats = hopper_tile_floats;    // of dq

// Sizes and places in shared memory, by the channels of a head.
template <int D>
struct Tiles {
  static constexpr int queries_rows = tile_floats / D;
  static constexpr int queries_per_keys = keys_rows / queries_rows;  // tiles of the one for a tile of the other
  static constexpr int panels = D / panel_channels;
  static constexpr int queries_panel_bytes = queries_rows * 128;
  static constexpr int queries_bytes = panels * queries_panel_bytes, keys_bytes = panels * keys_panel_bytes;
  static constexpr int score_panels = queries_rows / 64, scores_bytes = score_panels * keys_panel_bytes;

  static constexpr int stages = 2;                       // scores and dq take turns with them
  static constexpr int stage_bytes = 2 * queries_bytes;  // queries, then dout
  static constexpr int keys = stages * stage_bytes, values = keys + keys_bytes;
  static constexpr int scores = values + keys_bytes;                                   // of two tiles in turn
  static constexpr int dq = scores + 2 * scores_bytes, dq_bytes = tile_floats * 4;     // of two tiles in turn
  static constexpr int stats = dq + 2 * dq_bytes, stats_bytes = 2 * queries_rows * 4;  // of each stage: lse, then delta
  static constexpr int filled = stats + stages * stats_bytes, emptied = filled + stages * 8;
  static constexpr int keys_filled = emptied + stages * 8, keys_emptied = keys_filled + 8;
  static constexpr int dq_filled = keys_emptied + 8, dq_emptied = dq_filled + 2 * 8;
  static constexpr int unit = dq_emptied + 2 * 8, bytes = unit + 8;
};

struct Plan {
  CUtensorMap q, k, v, dout, dk, dv;
  float *lse, *delta;  // [sequences][heads][tiles * 128]
  float* sums;         // of dq: [sequences][heads][tiles of queries, then those of late keys][tile_floats]
  float* key_sums;     // with shares: [sequences][kv_heads][shares][tiles][dk, dv][keys_rows * D]
  int* turns;          // [sequences][heads][early, late][tiles of queries]: how many have added
  int* units_taken;
  int tiles, early;  // of keys, of a sequence; of them, those that come second in their unit
  int heads, kv_heads, shares;
  int group;  // query heads of a unit
  float scale, scale_log2;
  __device__ int late() const { return tiles - early; }
};

// A unit's work: for each of one or two tiles of keys, each query head that shares them, each tile of queries in turn.
template <int D>
class Unit {
  static constexpr int per_keys = Tiles<D>::queries_per_keys;

 public:
  __device__ Unit(const Plan& plan, int taken)
      : plan_(plan),
        number_(taken % plan.late()),
        sequence_(taken / plan.late() / (plan.kv_heads * plan.shares)),
        share_(taken / plan.late() % (plan.kv_heads * plan.shares)) {}

  __device__ int sequence() const { return sequence_; }
  __device__ int kv_head() const { return share_ / plan_.shares; }
  __device__ int parts() const { return number_ < plan_.early ? 2 : 1; }
  __device__ bool late(int part) const { return part == 0; }
  __device__ int keys(int part) const { return late(part) ? plan_.tiles - 1 - number_ : number_; }
  __device__ int steps(int part) const { return (plan_.tiles - keys(part)) * per_keys; }
  __device__ int queries(int part, int step) const {
    return late(part) ? keys(part) * per_keys + step : plan_.tiles * per_keys - 1 - step;
  }
  // Of the head of this number in the group, among those of all sequences.
  __device__ std::int64_t head(int of_group) const {
    return std::int64_t{sequence_} * plan_.heads + share_ * plan_.group + of_group;
  }
  __device__ int column(int of_group) const { return (share_ * plan_.group + of_group) * D; }
  // Where its share of the gradients of keys goes.
  __device__ float* key_sums(int part) const {
    const std::int64_t set = (std::int64_t{sequence_} * plan_.kv_heads * plan_.shares + share_) * plan_.tiles;
    return plan_.key_sums + (set + keys(part)) * (2 * keys_rows * D);
  }

 private:
  const Plan& plan_;
  int number_, sequence_, share_;  // the last among those of all key heads
};

template <int D>
class Fetcher {
  using Memory = Tiles<D>;

 public:
  __device__ Fetcher(const Plan& plan, const Unit<D>& unit, std::uint32_t memory)
      : plan_(plan), unit_(unit), memory_(memory) {}

  __device__ void run() {
    for (int part = 0; part < unit_.parts(); ++part) {
      fetch_keys(part);
      for (int of_group = 0; of_group < plan_.group; ++of_group)
        for (int step = 0; step < unit_.steps(part); ++step) fetch_queries(of_group, unit_.queries(part, step));
    }
  }

 private:
  __device__ void fetch_keys(int part) const {
    const std::uint32_t filled = memory_ + Memory::keys_filled;
    hopper::wait_for_phase(memory_ + Memory::keys_emptied, part ^ 1);
    hopper::arrive_expecting(filled, 2 * Memory::keys_bytes);
    const hopper::BoxPlace at{unit_.kv_head() * D, unit_.keys(part) * keys_rows, unit_.sequence()};
    fetch_panels(plan_.k, at, memory_ + Memory::keys, keys_panel_bytes, filled);
    fetch_panels(plan_.v, at, memory_ + Memory::values, keys_panel_bytes, filled);
  }

  __device__ void fetch_queries(int of_group, int m) {
    const std::uint32_t stage = memory_ + static_cast<std::uint32_t>(at_.stage * Memory::stage_bytes);
    const std::uint32_t stats = memory_ + static_cast<std::uint32_t>(Memory::stats + at_.stage * Memory::stats_bytes);
    const std::uint32_t filled = memory_ + static_cast<std::uint32_t>(Memory::filled + at_.stage * 8);
    constexpr std::uint32_t half_stats = Memory::stats_bytes / 2;
    hopper::wait_for_phase(memory_ + static_cast<std::uint32_t>(Memory::emptied + at_.stage * 8), at_.parity ^ 1);
    hopper::arrive_expecting(filled, Memory::stage_bytes + Memory::stats_bytes);
    const hopper::BoxPlace at{unit_.column(of_group), m * Memory::queries_rows, unit_.sequence()};
    const std::int64_t row = unit_.head(of_group) * plan_.tiles * keys_rows + m * Memory::queries_rows;
    fetch_panels(plan_.q, at, stage, Memory::queries_panel_bytes, filled);
    hopper::copy_bytes(stats, plan_.lse + row, half_stats, filled);
    fetch_panels(plan_.dout, at, stage + Memory::queries_bytes, Memory::queries_panel_bytes, filled);
    hopper::copy_bytes(stats + half_stats, plan_.delta + row, half_stats, filled);
    at_.next();
  }

  __device__ static void fetch_panels(const CUtensorMap& map, hopper::BoxPlace at, std::uint32_t to, int bytes,
                                      std::uint32_t filled) {
#pragma unroll
    for (int panel = 0; panel < Memory::panels; ++panel) {
      hopper::copy_box(to, map, at, filled);
      at.x += panel_channels;
      to += static_cast<std::uint32_t>(bytes);
    }
  }

  const Plan& plan_;
  const Unit<D>& unit_;
  std::uint32_t memory_;
  hopper::RingPlace<Memory::stages> at_;
};

// Adds tiles of dq to the sums in memory, each when those before it have. Two threads do it in turn: until an addition
// has ended, which others wait for, the next has long begun.
template <int D>
class Adder {
  using Memory = Tiles<D>;

 public:
  __device__ Adder(const Plan& plan, const Unit<D>& unit, std::uint32_t memory, int buffer)
      : plan_(plan), unit_(unit), memory_(memory), buffer_(buffer) {}

  __device__ void run() {
    int number = buffer_;
    for (int part = 0; part < unit_.parts(); ++part)
      for (int of_group = 0; of_group < plan_.group; ++of_group)
        for (int step = 0; step < unit_.steps(part); ++step, ++number)
          if (number % 2 == 0) add(part, unit_.head(of_group), unit_.queries(part, step));
  }

 private:
  __device__ void add(int part, std::int64_t head, int m) {
    constexpr int per_keys = Memory::queries_per_keys;
    const int all = plan_.tiles * per_keys, keys = unit_.keys(part);
    const bool late = unit_.late(part);
    const int before = late ? m / per_keys - keys : keys;  // how many tiles of keys add to these sums first
    int* const turn = plan_.turns + (head * 2 + (late ? 1 : 0)) * all + m;
    const std::int64_t tile = head * (all + plan_.late() * per_keys) + (late ? all + m - plan_.early * per_keys : m);
    float* const to = plan_.sums + tile * tile_floats;
    const std::uint32_t dq = memory_ + static_cast<std::uint32_t>(Memory::dq + buffer_ * Memory::dq_bytes);
    hopper::wait_for_phase(memory_ + static_cast<std::uint32_t>(Memory::dq_filled + buffer_ * 8), parity_);
    parity_ ^= 1;
    if (before == 0) {
      hopper::copy_bytes_out(to, dq, Memory::dq_bytes);
    } else {
      while (hopper::load_acquiring(turn) != before) {
      }
      hopper::order_global_copies();
      hopper::add_floats_out(to, dq, Memory::dq_bytes);
    }
    hopper::commit_copies_out();
    hopper::wait_for_reads_of_copies_out();
    hopper::arrive(memory_ + static_cast<std::uint32_t>(Memory::dq_emptied + buffer_ * 8));
    hopper::wait_for_copies_out();
    hopper::order_global_copies();
    hopper::store_releasing(turn, before + 1);
  }

  const Plan& plan_;
  const Unit<D>& unit_;
  std::uint32_t memory_, parity_ = 0;
  int buffer_;  // of two
};

__device__ inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class T>
__device__ inline std::uint32_t pair_of(float a, float b) {
  const Pack<T, 2> packed{from_float<T>(a), from_float<T>(b)};
  return *reinterpret_cast<const std::uint32_t*>(&packed);
}

// One of the two warpgroups that multiply.
template <class T, int D>
class Consumer {
  using Memory = Tiles<D>;
  static constexpr int score_sums = Memory::queries_rows / 2, gradient_sums = D / 2;  // of a thread, for 64 rows
  using Scores = float[score_sums];
  using Gradient = float[gradient_sums];
  using ScorePairs = std::uint32_t[score_sums / 2];

 public:
  __device__ Consumer(const Plan& plan, const Unit<D>& unit, unsigned char* memory)
      : plan_(plan),
        unit_(unit),
        memory_(memory),
        shared_(hopper::shared_address(memory)),
        thread_(static_cast<int>(threadIdx.x) - warpgroup) {}

  __device__ void run() {
    for (int part = 0; part < unit_.parts(); ++part) {
      Gradient dk, dv;
#pragma unroll
      for (int i = 0; i < gradient_sums; ++i) dk[i] = dv[i] = 0;
      hopper::wait_for_phase(shared_ + Memory::keys_filled, part);
      const int steps = unit_.steps(part), further = unit_.late(part) ? Memory::queries_rows : -Memory::queries_rows;
      const int first = unit_.queries(part, 0) * Memory::queries_rows - unit_.keys(part) * keys_rows;
      for (int of_group = 0; of_group < plan_.group; ++of_group)
        for (int step = 0, behind = first; step < steps; ++step, behind += further) take_queries(behind, dk, dv);
      if (plan_.shares == 1)
        bring_out(unit_.keys(part), dk, dv);
      else
        leave_sums(unit_.key_sums(part), dk, dv);
    }
  }

 private:
  // The next tile of queries, the first of which stands so many rows behind the first key.
  __device__ void take_queries(int behind, Gradient& dk, Gradient& dv) {
    const std::uint32_t stage = shared_ + static_cast<std::uint32_t>(at_.stage * Memory::stage_bytes);
    const std::uint32_t q = stage, dout = stage + Memory::queries_bytes;
    const auto* const lse = reinterpret_cast<const float*>(memory_ + Memory::stats + at_.stage * Memory::stats_bytes);
    Scores p, ds;
    hopper::wait_for_phase(shared_ + static_cast<std::uint32_t>(Memory::filled + at_.stage * 8), at_.parity);
    multiply_rows(p, shared_ + Memory::keys, q);
    multiply_rows(ds, shared_ + Memory::values, dout);
    hopper::wait_for_products<1>();
    hopper::hold(p);
    each_pair(
        [&](int i, float2 of_queries) {
          p[i] = exp2_of(fmaf(p[i], plan_.scale_log2, -of_queries.x));
          p[i + 1] = exp2_of(fmaf(p[i + 1], plan_.scale_log2, -of_queries.y));
        },
        lse);
    if (behind < keys_rows) mask(p, behind);
    ScorePairs pairs;
    pack(pairs, p);
    multiply_pairs(dv, pairs, dout);
    hopper::wait_for_products<1>();
    hopper::hold(ds);
    each_pair(
        [&](int i, float2 of_queries) {
          ds[i] = p[i] * (ds[i] - of_queries.x);
          ds[i + 1] = p[i + 1] * (ds[i + 1] - of_queries.y);
        },
        lse + Memory::queries_rows);
    ScorePairs scores;
    pack(scores, ds);
    const std::uint32_t buffer =
        shared_ + static_cast<std::uint32_t>(Memory::scores + at_.stage * Memory::scores_bytes);
    write_pairs<Memory::queries_rows / 16>(buffer, scores);
    hopper::publish_to_engines();
    hopper::sync_some<consumers>(1);
    float dq[32];
    multiply_scores(dq, buffer);
    multiply_pairs(dk, scores, q);
    hopper::wait_for_products<1>();
    hopper::hold(dv);
    hopper::hold(dq);
    hand_over(dq);
    hopper::wait_for_products<0>();
    hopper::hold(dk);
    if (lane() == 0) hopper::arrive(shared_ + static_cast<std::uint32_t>(Memory::emptied + at_.stage * 8));
    at_.next();
  }

  // f(i, values of two queries) for sums i and i + 1 of a thread, which are of these.
  template <class F>
  __device__ void each_pair(const F& f, const float* of_queries) const {
    of_queries += lane() % 4 * 2;
#pragma unroll
    for (int j = 0; j < score_sums / 4; ++j) {
      const float2 two = *reinterpret_cast<const float2*>(of_queries + 8 * j);
      f(4 * j, two);
      f(4 * j + 2, two);
    }
  }

  // sum = rows [64 of ours, D] queries [*, D]^T.
  __device__ void multiply_rows(Scores& sum, std::uint32_t rows, std::uint32_t queries) const {
    const std::uint64_t left = hopper::operand(rows + static_cast<std::uint32_t>(part() * (keys_panel_bytes / 2)), 16);
    const std::uint64_t right = hopper::operand(queries, 16);
    hopper::begin_products();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const int panel = k / 4, inside = k % 4 * 2;
      hopper::start_product<T, 0, 0>(sum, left + (panel * (keys_panel_bytes / 16) + inside),
                                     right + (panel * (Memory::queries_panel_bytes / 16) + inside), k > 0);
    }
    hopper::commit_products();
  }

  // sum += pairs [64, queries] right [queries, D].
  __device__ void multiply_pairs(Gradient& sum, const ScorePairs& pairs, std::uint32_t right) const {
    const std::uint64_t operand = hopper::operand(right, Memory::queries_panel_bytes);
    hopper::begin_products();
#pragma unroll
    for (int k = 0; k < Memory::queries_rows / 16; ++k)
      hopper::start_product<T, 1>(sum, pairs + 4 * k, operand + 128 * k, 1);
    hopper::commit_products();
  }

  // sum = scores [keys, 64 queries]^T keys [keys, 64 channels]: of our queries or our channels.
  __device__ void multiply_scores(float (&sum)[32], std::uint32_t scores) const {
    const auto panel = static_cast<std::uint32_t>(part() * keys_panel_bytes);
    const std::uint64_t left = hopper::operand(scores + (Memory::score_panels == 2 ? panel : 0), 16);
    const std::uint64_t right = hopper::operand(shared_ + Memory::keys + (Memory::panels == 2 ? panel : 0), 16);
    hopper::begin_products();
#pragma unroll
    for (int k = 0; k < keys_rows / 16; ++k)
      hopper::start_product<T, 1, 1>(sum, left + 128 * k, right + 128 * k, k > 0);
    hopper::commit_products();
  }

  // Keys behind their query are not seen.
  __device__ void mask(Scores& p, int behind) const {
    const int first = thread_ / 32 * 16 + lane() / 4 - lane() % 4 * 2 - behind;  // key less query
#pragma unroll
    for (int i = 0; i < score_sums; ++i)
      if (first + i % 4 / 2 * 8 > i / 4 * 8 + i % 2) p[i] = 0;
  }

  __device__ static void pack(ScorePairs& pairs, const Scores& sum) {
#pragma unroll
    for (int i = 0; i < score_sums / 2; ++i) pairs[i] = pair_of<T>(sum[2 * i], sum[2 * i + 1]);
  }

  // 64 rows of this warpgroup, 16 columns at a step, to panels of 128 rows.
  template <int steps>
  __device__ void write_pairs(std::uint32_t to, const std::uint32_t* pairs) const {
    const int row = thread_ / 32 * 16 + lane() % 16;
    const std::uint32_t start = to + static_cast<std::uint32_t>(row * 128 + ((lane() / 16 ^ row) & 7) * 16);
#pragma unroll
    for (int k = 0; k < steps; ++k)
      hopper::store_matrices((start ^ k % 4 * 32u) + static_cast<std::uint32_t>(k / 4 * keys_panel_bytes),
                             *reinterpret_cast<const std::uint32_t(*)[4]>(pairs + 4 * k));
  }

  // Each thread's sums where no bank is met twice; finish_dq() knows where that is.
  __device__ void hand_over(const float (&dq)[32]) const {
    hopper::wait_for_phase(shared_ + static_cast<std::uint32_t>(Memory::dq_emptied + at_.stage * 8), at_.parity ^ 1);
    float4* const to = reinterpret_cast<float4*>(memory_ + Memory::dq + at_.stage * Memory::dq_bytes) + thread_;
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j * consumers] = {dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]};
    hopper::publish_to_engines();
    __syncwarp();
    if (lane() == 0) hopper::arrive(shared_ + static_cast<std::uint32_t>(Memory::dq_filled + at_.stage * 8));
  }

  // To where keys and values were.
  __device__ void bring_out(int n, const Gradient& dk, const Gradient& dv) const {
    hopper::sync_some<consumers>(1);  // nobody reads keys any more
    write_gradient(shared_ + Memory::keys, dk, plan_.scale);
    write_gradient(shared_ + Memory::values, dv, 1);
    hopper::publish_to_engines();
    hopper::sync_some<consumers>(1);
    if (thread_ == 0) send_gradients(n);
    __syncwarp();  // products are of whole warps
  }

  // As the threads have them; finish_keys() knows where that is.
  __device__ void leave_sums(float* sums, const Gradient& dk, const Gradient& dv) const {
    float4* const to = reinterpret_cast<float4*>(sums) + thread_;
    constexpr int packs = gradient_sums / 4;
#pragma unroll
    for (int j = 0; j < packs; ++j) {
      to[j * consumers] = {dk[4 * j], dk[4 * j + 1], dk[4 * j + 2], dk[4 * j + 3]};
      to[(packs + j) * consumers] = {dv[4 * j], dv[4 * j + 1], dv[4 * j + 2], dv[4 * j + 3]};
    }
    hopper::sync_some<consumers>(1);  // nobody reads keys any more
    if (thread_ == 0) hopper::arrive(shared_ + Memory::keys_emptied);
    __syncwarp();  // products are of whole warps
  }

  __device__ void send_gradients(int n) const {
    hopper::BoxPlace to{unit_.kv_head() * D, n * keys_rows, unit_.sequence()};
    for (int panel = 0; panel < Memory::panels; ++panel, to.x += panel_channels) {
      const auto from = static_cast<std::uint32_t>(panel * keys_panel_bytes);
      hopper::copy_box_out(plan_.dk, to, shared_ + Memory::keys + from);
      hopper::copy_box_out(plan_.dv, to, shared_ + Memory::values + from);
    }
    hopper::commit_copies_out();
    hopper::wait_for_copies_out();
    hopper::arrive(shared_ + Memory::keys_emptied);
  }

  __device__ void write_gradient(std::uint32_t to, const Gradient& sum, float scale) const {
    std::uint32_t pairs[gradient_sums / 2];
#pragma unroll
    for (int i = 0; i < gradient_sums / 2; ++i) pairs[i] = pair_of<T>(sum[2 * i] * scale, sum[2 * i + 1] * scale);
    write_pairs<D / 16>(to, pairs);
  }

  __device__ int part() const { return thread_ / warpgroup; }
  __device__ int lane() const { return thread_ % 32; }

  const Plan& plan_;
  const Unit<D>& unit_;
  unsigned char* memory_;
  std::uint32_t shared_;
  int thread_;                            // among those of both warpgroups
  hopper::RingPlace<Memory::stages> at_;  // the stage also tells which scores and which dq it is the turn of
};

template <int D>
__device__ inline void init_barriers(std::uint32_t shared) {
  using Memory = Tiles<D>;
  for (int stage = 0; stage < Memory::stages; ++stage) {
    hopper::init_barrier(shared + static_cast<std::uint32_t>(Memory::filled + stage * 8), 1);
    hopper::init_barrier(shared + static_cast<std::uint32_t>(Memory::emptied + stage * 8), consumers / 32);
    hopper::init_barrier(shared + static_cast<std::uint32_t>(Memory::dq_filled + stage * 8), consumers / 32);
    hopper::init_barrier(shared + static_cast<std::uint32_t>(Memory::dq_emptied + stage * 8), 1);
  }
  hopper::init_barrier(shared + Memory::keys_filled, 1);
  hopper::init_barrier(shared + Memory::keys_emptied, 1);
  hopper::publish_barriers();
}

template <class T, int D>
__global__ void __launch_bounds__(threads, 1) go_back(const __grid_constant__ Plan plan) {
  using Memory = Tiles<D>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = hopper::shared_address(memory);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    init_barriers<D>(shared);
    *reinterpret_cast<int*>(memory + Memory::unit) = atomicAdd(plan.units_taken, 1);
  }
  __syncthreads();
  const Unit<D> unit(plan, *reinterpret_cast<const int*>(memory + Memory::unit));
  // Registers: with those of two warpgroups that multiply, three times the 168 that the block begins with.
  constexpr int few = D == 64 ? 24 : 40, many = 252 - few / 2;
  if (thread < warpgroup) {
    hopper::shrink_registers<few>();
    if (thread == 0) Fetcher<D>(plan, unit, shared).run();
    if (thread == 32 || thread == 64) Adder<D>(plan, unit, shared, thread / 64).run();
  } else {
    hopper::grow_registers<many>();
    Consumer<T, D>(plan, unit, memory).run();
  }
}

}  // namespace tera::cuda::kernels::attention_back
