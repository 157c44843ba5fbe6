#pragma once
// The main kernel of hopper_attention_back.cu: a deterministic, warp-specialised backward of flash attention.
//
// Keys of a sequence are cut into tiles of 128 rows, queries into tiles of 128 (heads of 64 channels) or 64 (of 128). A
// block of threads keeps a tile of keys, with the sums of their gradients dk and dv in registers, and goes through the
// tiles of queries that see it, of all query heads that share the keys. For each pair of tiles:
//
//   S^T = K Q^T      dP^T = V dO^T      P^T = exp(S^T - lse)      dS^T = P^T (dP^T - delta)
//   dv += P^T dO     dk += dS^T Q       dq += dS K
//
// Two consumer warpgroups have 64 keys each, so P^T and dS^T come as registers that the next wgmma takes as its left
// operand; dS also goes through shared memory, from where each warpgroup reads the keys of both for its half of dq: 64
// queries, or 64 channels. Of the third warpgroup one thread (the producer) issues the TMA loads, two others add dq to
// global memory by bulk reductions.
//
// The order in which blocks add to dq is fixed by semaphores in global memory, and such that they hardly wait for each
// other. A unit of work is two tiles of keys, u from the end and u from the start, so that all units take equally long:
//
//   the late tiles, M-1, M-2, ..., go through their queries upwards: tile n comes to a tile of queries a step or two
//   after tile n + 1 did. They add in the order of the units.
//   the early tiles, 0, 1, ..., go downwards from the last queries: tile n begins some steps for each query head after
//   tile n - 1, and takes as many less for each head, so it always stays behind. They also add in the order of the
//   units.
//
// Late and early tiles have sums of their own, which become dq in the end. Blocks take units from an atomic counter, so
// that none waits for one that has not begun.
//
// Where there would be few units, the query heads that share keys are split over several of them (plan.head_splits).
// Each stores partial sums of dk and dv in fp32, which are reduced in the end.

#include "tera/backend/cuda/kernels/hopper/hopper.cuh"
#include "tera/backend/cuda/kernels/hopper/hopper_attention_workspace.h"
#include "tera/backend/cuda/kernels/types.cuh"

namespace tera::cuda::kernels::attention_back {

constexpr int warpgroup = 128, threads = 3 * warpgroup, consumers = 2 * warpgroup;
constexpr int keys_rows = hopper_key_rows;
constexpr int panel_channels = 64;                 // tiles lie in panels: 128 bytes of each of their rows
constexpr int keys_panel_bytes = keys_rows * 128;  // a panel of keys, values or scores
constexpr int tile_floats = hopper_tile_floats;    // elements of a tile of dq

// Sizes and offsets in shared memory, by the channels of a head.
template <int D>
struct Tiles {
  static constexpr int queries_rows = tile_floats / D;
  static constexpr int queries_per_keys = keys_rows / queries_rows;  // tiles of the one for a tile of the other
  static constexpr int panels = D / panel_channels;
  static constexpr int queries_panel_bytes = queries_rows * 128;
  static constexpr int queries_bytes = panels * queries_panel_bytes, keys_bytes = panels * keys_panel_bytes;
  static constexpr int score_panels = queries_rows / 64, scores_bytes = score_panels * keys_panel_bytes;

  static constexpr int stages = 2;                       // scores and dq are double-buffered with them
  static constexpr int stage_bytes = 2 * queries_bytes;  // queries, then dout
  static constexpr int keys = stages * stage_bytes, values = keys + keys_bytes;
  static constexpr int scores = values + keys_bytes;                                   // two tiles of scores
  static constexpr int dq = scores + 2 * scores_bytes, dq_bytes = tile_floats * 4;     // two tiles of dq
  static constexpr int stats = dq + 2 * dq_bytes, stats_bytes = 2 * queries_rows * 4;  // per stage: lse, then delta
  static constexpr int filled = stats + stages * stats_bytes, emptied = filled + stages * 8;
  static constexpr int keys_filled = emptied + stages * 8, keys_emptied = keys_filled + 8;
  static constexpr int dq_filled = keys_emptied + 8, dq_emptied = dq_filled + 2 * 8;
  static constexpr int unit = dq_emptied + 2 * 8, bytes = unit + 8;
};

struct Plan {
  CUtensorMap q, k, v, dout, dk, dv;
  float *lse, *delta;  // [sequences][heads][tiles * 128]
  float* sums;         // sums of dq: [sequences][heads][tiles of queries, then those of late keys][tile_floats]
  float*
      key_sums;  // partial dk, dv with several splits: [sequences][kv_heads][head_splits][tiles][dk, dv][keys_rows * D]
  int* semaphores;  // [sequences][heads][early, late][tiles of queries]: how many have added
  int* units_taken;
  int tiles, early;  // tiles of keys of a sequence, and how many of them come second in their unit
  int heads, kv_heads, head_splits;
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
        sequence_(taken / plan.late() / (plan.kv_heads * plan.head_splits)),
        split_(taken / plan.late() % (plan.kv_heads * plan.head_splits)) {}

  __device__ int sequence() const { return sequence_; }
  __device__ int kv_head() const { return split_ / plan_.head_splits; }
  __device__ int parts() const { return number_ < plan_.early ? 2 : 1; }
  __device__ bool late(int part) const { return part == 0; }
  __device__ int keys(int part) const { return late(part) ? plan_.tiles - 1 - number_ : number_; }
  __device__ int steps(int part) const { return (plan_.tiles - keys(part)) * per_keys; }
  __device__ int queries(int part, int step) const {
    return late(part) ? keys(part) * per_keys + step : plan_.tiles * per_keys - 1 - step;
  }
  // The number of a head of the group among the heads of all sequences.
  __device__ std::int64_t head(int of_group) const {
    return std::int64_t{sequence_} * plan_.heads + split_ * plan_.group + of_group;
  }
  __device__ int column(int of_group) const { return (split_ * plan_.group + of_group) * D; }
  // Where the unit's partial gradients of these keys go.
  __device__ float* key_sums(int part) const {
    const std::int64_t set = (std::int64_t{sequence_} * plan_.kv_heads * plan_.head_splits + split_) * plan_.tiles;
    return plan_.key_sums + (set + keys(part)) * (2 * keys_rows * D);
  }

 private:
  const Plan& plan_;
  int number_, sequence_, split_;  // split_: among the splits of all key heads
};

template <int D>
class Producer {
  using Memory = Tiles<D>;

 public:
  __device__ Producer(const Plan& plan, const Unit<D>& unit, std::uint32_t memory)
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
    hopper::mbarrier_wait(memory_ + Memory::keys_emptied, part ^ 1);
    hopper::mbarrier_arrive_expect_tx(filled, 2 * Memory::keys_bytes);
    const hopper::TmaCoordinates at{unit_.kv_head() * D, unit_.keys(part) * keys_rows, unit_.sequence()};
    fetch_panels(plan_.k, at, memory_ + Memory::keys, keys_panel_bytes, filled);
    fetch_panels(plan_.v, at, memory_ + Memory::values, keys_panel_bytes, filled);
  }

  __device__ void fetch_queries(int of_group, int m) {
    const std::uint32_t stage = memory_ + static_cast<std::uint32_t>(at_.stage * Memory::stage_bytes);
    const std::uint32_t stats = memory_ + static_cast<std::uint32_t>(Memory::stats + at_.stage * Memory::stats_bytes);
    const std::uint32_t filled = memory_ + static_cast<std::uint32_t>(Memory::filled + at_.stage * 8);
    constexpr std::uint32_t half_stats = Memory::stats_bytes / 2;
    hopper::mbarrier_wait(memory_ + static_cast<std::uint32_t>(Memory::emptied + at_.stage * 8), at_.parity ^ 1);
    hopper::mbarrier_arrive_expect_tx(filled, Memory::stage_bytes + Memory::stats_bytes);
    const hopper::TmaCoordinates at{unit_.column(of_group), m * Memory::queries_rows, unit_.sequence()};
    const std::int64_t row = unit_.head(of_group) * plan_.tiles * keys_rows + m * Memory::queries_rows;
    fetch_panels(plan_.q, at, stage, Memory::queries_panel_bytes, filled);
    hopper::bulk_load(stats, plan_.lse + row, half_stats, filled);
    fetch_panels(plan_.dout, at, stage + Memory::queries_bytes, Memory::queries_panel_bytes, filled);
    hopper::bulk_load(stats + half_stats, plan_.delta + row, half_stats, filled);
    at_.next();
  }

  __device__ static void fetch_panels(const CUtensorMap& map, hopper::TmaCoordinates at, std::uint32_t to, int bytes,
                                      std::uint32_t filled) {
#pragma unroll
    for (int panel = 0; panel < Memory::panels; ++panel) {
      hopper::tma_load(to, map, at, filled);
      at.x += panel_channels;
      to += static_cast<std::uint32_t>(bytes);
    }
  }

  const Plan& plan_;
  const Unit<D>& unit_;
  std::uint32_t memory_;
  hopper::PipelineState<Memory::stages> at_;
};

// Adds tiles of dq to the sums in global memory by bulk reductions, each after the tiles of keys before it
// (semaphores). Two threads alternate: until a reduction has completed, which other blocks wait for, the next has long
// begun.
template <int D>
class DqReducer {
  using Memory = Tiles<D>;

 public:
  __device__ DqReducer(const Plan& plan, const Unit<D>& unit, std::uint32_t memory, int buffer)
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
    int* const semaphore = plan_.semaphores + (head * 2 + (late ? 1 : 0)) * all + m;
    const std::int64_t tile = head * (all + plan_.late() * per_keys) + (late ? all + m - plan_.early * per_keys : m);
    float* const to = plan_.sums + tile * tile_floats;
    const std::uint32_t dq = memory_ + static_cast<std::uint32_t>(Memory::dq + buffer_ * Memory::dq_bytes);
    hopper::mbarrier_wait(memory_ + static_cast<std::uint32_t>(Memory::dq_filled + buffer_ * 8), parity_);
    parity_ ^= 1;
    if (before == 0) {
      hopper::bulk_store(to, dq, Memory::dq_bytes);
    } else {
      while (hopper::load_acquire(semaphore) != before) {
      }
      hopper::fence_proxy_async_global();
      hopper::bulk_reduce_add(to, dq, Memory::dq_bytes);
    }
    hopper::bulk_commit_group();
    hopper::bulk_wait_group_read();
    hopper::mbarrier_arrive(memory_ + static_cast<std::uint32_t>(Memory::dq_emptied + buffer_ * 8));
    hopper::bulk_wait_group();
    hopper::fence_proxy_async_global();
    hopper::store_release(semaphore, before + 1);
  }

  const Plan& plan_;
  const Unit<D>& unit_;
  std::uint32_t memory_, parity_ = 0;
  int buffer_;  // index in the double buffer of dq
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

// One of the two consumer warpgroups.
template <class T, int D>
class Consumer {
  using Memory = Tiles<D>;
  static constexpr int score_sums = Memory::queries_rows / 2, gradient_sums = D / 2;  // a thread's sums for 64 rows
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
      hopper::mbarrier_wait(shared_ + Memory::keys_filled, part);
      const int steps = unit_.steps(part), q_step = unit_.late(part) ? Memory::queries_rows : -Memory::queries_rows;
      const int first = unit_.queries(part, 0) * Memory::queries_rows - unit_.keys(part) * keys_rows;
      for (int of_group = 0; of_group < plan_.group; ++of_group)
        for (int step = 0, q_offset = first; step < steps; ++step, q_offset += q_step)
          process_queries(q_offset, dk, dv);
      if (plan_.head_splits == 1)
        store_gradients(unit_.keys(part), dk, dv);
      else
        store_partials(unit_.key_sums(part), dk, dv);
    }
  }

 private:
  // The next tile of queries, whose first row is q_offset after the first key.
  __device__ void process_queries(int q_offset, Gradient& dk, Gradient& dv) {
    const std::uint32_t stage = shared_ + static_cast<std::uint32_t>(at_.stage * Memory::stage_bytes);
    const std::uint32_t q = stage, dout = stage + Memory::queries_bytes;
    const auto* const lse = reinterpret_cast<const float*>(memory_ + Memory::stats + at_.stage * Memory::stats_bytes);
    Scores p, ds;
    hopper::mbarrier_wait(shared_ + static_cast<std::uint32_t>(Memory::filled + at_.stage * 8), at_.parity);
    multiply_rows(p, shared_ + Memory::keys, q);
    multiply_rows(ds, shared_ + Memory::values, dout);
    hopper::wgmma_wait<1>();
    hopper::wgmma_fence_registers(p);
    each_pair(
        [&](int i, float2 of_queries) {
          p[i] = exp2_of(fmaf(p[i], plan_.scale_log2, -of_queries.x));
          p[i + 1] = exp2_of(fmaf(p[i + 1], plan_.scale_log2, -of_queries.y));
        },
        lse);
    if (q_offset < keys_rows) mask(p, q_offset);
    ScorePairs pairs;
    pack(pairs, p);
    multiply_pairs(dv, pairs, dout);
    hopper::wgmma_wait<1>();
    hopper::wgmma_fence_registers(ds);
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
    hopper::fence_proxy_async_shared();
    hopper::named_barrier_sync<consumers>(1);
    float dq[32];
    multiply_scores(dq, buffer);
    multiply_pairs(dk, scores, q);
    hopper::wgmma_wait<1>();
    hopper::wgmma_fence_registers(dv);
    hopper::wgmma_fence_registers(dq);
    stage_dq(dq);
    hopper::wgmma_wait<0>();
    hopper::wgmma_fence_registers(dk);
    if (lane() == 0) hopper::mbarrier_arrive(shared_ + static_cast<std::uint32_t>(Memory::emptied + at_.stage * 8));
    at_.next();
  }

  // f(i, values of two queries) for sums i and i + 1 of a thread, which belong to these queries.
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

  // sum = rows [64 of this warpgroup, D] queries [*, D]^T.
  __device__ void multiply_rows(Scores& sum, std::uint32_t rows, std::uint32_t queries) const {
    const std::uint64_t left =
        hopper::matrix_descriptor(rows + static_cast<std::uint32_t>(part() * (keys_panel_bytes / 2)), 16);
    const std::uint64_t right = hopper::matrix_descriptor(queries, 16);
    hopper::wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const int panel = k / 4, inside = k % 4 * 2;
      hopper::wgmma<T, 0, 0>(sum, left + (panel * (keys_panel_bytes / 16) + inside),
                             right + (panel * (Memory::queries_panel_bytes / 16) + inside), k > 0);
    }
    hopper::wgmma_commit();
  }

  // sum += pairs [64, queries] right [queries, D].
  __device__ void multiply_pairs(Gradient& sum, const ScorePairs& pairs, std::uint32_t right) const {
    const std::uint64_t b = hopper::matrix_descriptor(right, Memory::queries_panel_bytes);
    hopper::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Memory::queries_rows / 16; ++k) hopper::wgmma<T, 1>(sum, pairs + 4 * k, b + 128 * k, 1);
    hopper::wgmma_commit();
  }

  // sum = scores [keys, 64 queries]^T keys [keys, 64 channels]: of this warpgroup's queries or channels.
  __device__ void multiply_scores(float (&sum)[32], std::uint32_t scores) const {
    const auto panel = static_cast<std::uint32_t>(part() * keys_panel_bytes);
    const std::uint64_t left = hopper::matrix_descriptor(scores + (Memory::score_panels == 2 ? panel : 0), 16);
    const std::uint64_t right =
        hopper::matrix_descriptor(shared_ + Memory::keys + (Memory::panels == 2 ? panel : 0), 16);
    hopper::wgmma_fence();
#pragma unroll
    for (int k = 0; k < keys_rows / 16; ++k) hopper::wgmma<T, 1, 1>(sum, left + 128 * k, right + 128 * k, k > 0);
    hopper::wgmma_commit();
  }

  // The causal mask: keys after their query are not seen.
  __device__ void mask(Scores& p, int q_offset) const {
    const int first = thread_ / 32 * 16 + lane() / 4 - lane() % 4 * 2 - q_offset;  // key less query
#pragma unroll
    for (int i = 0; i < score_sums; ++i)
      if (first + i % 4 / 2 * 8 > i / 4 * 8 + i % 2) p[i] = 0;
  }

  __device__ static void pack(ScorePairs& pairs, const Scores& sum) {
#pragma unroll
    for (int i = 0; i < score_sums / 2; ++i) pairs[i] = pair_of<T>(sum[2 * i], sum[2 * i + 1]);
  }

  // Stores 64 rows of this warpgroup to panels of 128 rows by stmatrix, 16 columns at a step.
  template <int steps>
  __device__ void write_pairs(std::uint32_t to, const std::uint32_t* pairs) const {
    const int row = thread_ / 32 * 16 + lane() % 16;
    const std::uint32_t start = to + static_cast<std::uint32_t>(row * 128 + ((lane() / 16 ^ row) & 7) * 16);
#pragma unroll
    for (int k = 0; k < steps; ++k)
      hopper::stmatrix_x4((start ^ k % 4 * 32u) + static_cast<std::uint32_t>(k / 4 * keys_panel_bytes),
                          *reinterpret_cast<const std::uint32_t(*)[4]>(pairs + 4 * k));
  }

  // Stores each thread's sums to shared memory without bank conflicts, in a layout that finish_dq() shares.
  __device__ void stage_dq(const float (&dq)[32]) const {
    hopper::mbarrier_wait(shared_ + static_cast<std::uint32_t>(Memory::dq_emptied + at_.stage * 8), at_.parity ^ 1);
    float4* const to = reinterpret_cast<float4*>(memory_ + Memory::dq + at_.stage * Memory::dq_bytes) + thread_;
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j * consumers] = {dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]};
    hopper::fence_proxy_async_shared();
    __syncwarp();
    if (lane() == 0) hopper::mbarrier_arrive(shared_ + static_cast<std::uint32_t>(Memory::dq_filled + at_.stage * 8));
  }

  // The epilogue: dk and dv go out through the shared memory of keys and values.
  __device__ void store_gradients(int n, const Gradient& dk, const Gradient& dv) const {
    hopper::named_barrier_sync<consumers>(1);  // nobody reads keys any more
    write_gradient(shared_ + Memory::keys, dk, plan_.scale);
    write_gradient(shared_ + Memory::values, dv, 1);
    hopper::fence_proxy_async_shared();
    hopper::named_barrier_sync<consumers>(1);
    if (thread_ == 0) issue_stores(n);
    __syncwarp();  // wgmma takes converged warps
  }

  // Stores partial dk and dv in the threads' own layout, which finish_keys() shares.
  __device__ void store_partials(float* sums, const Gradient& dk, const Gradient& dv) const {
    float4* const to = reinterpret_cast<float4*>(sums) + thread_;
    constexpr int packs = gradient_sums / 4;
#pragma unroll
    for (int j = 0; j < packs; ++j) {
      to[j * consumers] = {dk[4 * j], dk[4 * j + 1], dk[4 * j + 2], dk[4 * j + 3]};
      to[(packs + j) * consumers] = {dv[4 * j], dv[4 * j + 1], dv[4 * j + 2], dv[4 * j + 3]};
    }
    hopper::named_barrier_sync<consumers>(1);  // nobody reads keys any more
    if (thread_ == 0) hopper::mbarrier_arrive(shared_ + Memory::keys_emptied);
    __syncwarp();  // wgmma takes converged warps
  }

  __device__ void issue_stores(int n) const {
    hopper::TmaCoordinates to{unit_.kv_head() * D, n * keys_rows, unit_.sequence()};
    for (int panel = 0; panel < Memory::panels; ++panel, to.x += panel_channels) {
      const auto from = static_cast<std::uint32_t>(panel * keys_panel_bytes);
      hopper::tma_store(plan_.dk, to, shared_ + Memory::keys + from);
      hopper::tma_store(plan_.dv, to, shared_ + Memory::values + from);
    }
    hopper::bulk_commit_group();
    hopper::bulk_wait_group();
    hopper::mbarrier_arrive(shared_ + Memory::keys_emptied);
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
  int thread_;                                // among those of both warpgroups
  hopper::PipelineState<Memory::stages> at_;  // its stage is also the index of the buffers of scores and dq
};

template <int D>
__device__ inline void init_mbarriers(std::uint32_t shared) {
  using Memory = Tiles<D>;
  for (int stage = 0; stage < Memory::stages; ++stage) {
    hopper::mbarrier_init(shared + static_cast<std::uint32_t>(Memory::filled + stage * 8), 1);
    hopper::mbarrier_init(shared + static_cast<std::uint32_t>(Memory::emptied + stage * 8), consumers / 32);
    hopper::mbarrier_init(shared + static_cast<std::uint32_t>(Memory::dq_filled + stage * 8), consumers / 32);
    hopper::mbarrier_init(shared + static_cast<std::uint32_t>(Memory::dq_emptied + stage * 8), 1);
  }
  hopper::mbarrier_init(shared + Memory::keys_filled, 1);
  hopper::mbarrier_init(shared + Memory::keys_emptied, 1);
  hopper::fence_mbarrier_init();
}

template <class T, int D>
__global__ void __launch_bounds__(threads, 1) attention_back_kernel(const __grid_constant__ Plan plan) {
  using Memory = Tiles<D>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const std::uint32_t shared = hopper::shared_address(memory);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    init_mbarriers<D>(shared);
    *reinterpret_cast<int*>(memory + Memory::unit) = atomicAdd(plan.units_taken, 1);
  }
  __syncthreads();
  const Unit<D> unit(plan, *reinterpret_cast<const int*>(memory + Memory::unit));
  // Registers: with those of the two consumer warpgroups, three times the 168 that the block begins with.
  constexpr int few = D == 64 ? 24 : 40, many = 252 - few / 2;
  if (thread < warpgroup) {
    hopper::setmaxnreg_dec<few>();
    if (thread == 0) Producer<D>(plan, unit, shared).run();
    if (thread == 32 || thread == 64) DqReducer<D>(plan, unit, shared, thread / 64).run();
  } else {
    hopper::setmaxnreg_inc<many>();
    Consumer<T, D>(plan, unit, memory).run();
  }
}

}  // namespace tera::cuda::kernels::attention_back
