#include "tera/optim/data_parallel.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tera/base/error.h"
#include "tera/ops/combine.h"
#include "tera/ops/copy.h"

namespace tera {

DataParallel::DataParallel(ParamStore& params, Groups& groups, Ops& ops, Options options)
    : params_(params), groups_(groups), options_(std::move(options)), ops_(&ops) {
  const auto buckets = params.buckets();
  states_.resize(buckets.size());
  buckets_of_.resize(options_.grads_in_f.size());
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    states_[i].sums = replica_sums(buckets[i]);
    states_[i].blocks_left = static_cast<int>(buckets[i].blocks.size());
    for (int block : buckets[i].blocks) buckets_of_.at(static_cast<std::size_t>(block)).push_back(static_cast<int>(i));
  }
  weight_buffers_.resize(params.weight_buffers().size());
  grad_buffers_.resize(params.grad_buffers().size());
}

// Neighbours in memory become one all-reduce; between them are only gaps, which are zero.
std::vector<DataParallel::ReplicaSum> DataParallel::replica_sums(const Bucket& bucket) const {
  std::vector<ReplicaSum> sums;
  for (const Param* param : bucket.params) {
    if (!param->spec.partial_gradient) continue;
    const std::int64_t width = count(param->spec.shape) / param->spec.shape[0];
    for (const Part& part : param->spec.parts) {
      if (part.replicas == 1) continue;
      Comm* group = bucket.expert ? &groups_.etp : part.replicas == groups_.tp.size() ? &groups_.tp : &groups_.kv;
      require(part.replicas == group->size(), "'{}' has {} replicas, and {} {} ranks", part.name, part.replicas,
              group->name(), group->size());
      const std::int64_t begin = param->offset - bucket.begin + part.local_row * width;
      const std::int64_t end = begin + part.local_shape()[0] * width;
      const std::int64_t gap = part.local_row == 0 ? ParamStore::alignment : 1;  // within a parameter there is none
      if (!sums.empty() && sums.back().group == group && begin - sums.back().end < gap) {
        sums.back().end = end;
      } else {
        sums.push_back({begin, end, group});
      }
    }
  }
  return sums;
}

bool DataParallel::makes_gradients(int block, Act act) const {
  return training_ && (act != Act::F || options_.grads_in_f[static_cast<std::size_t>(block)]);
}

void DataParallel::begin_gradients() {
  begun_ = true;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    Bucket& bucket = params_.buckets()[i];
    states_[i].shard_is_empty = !bucket.keeps_grad;
    if (bucket.keeps_grad) params_.empty_grads(*ops_, bucket);
  }
}

void DataParallel::before(int block, Act act, int next_block) {
  require(begun_ || !makes_gradients(block, act), "a block makes gradients before a step's gradients have begun");
  const auto& buckets = buckets_of_[static_cast<std::size_t>(block)];
  for (int bucket : buckets) fetch(bucket, /*prefetch=*/false);
  if (next_block >= 0 && !weight_buffers_.empty())
    for (int bucket : buckets_of_[static_cast<std::size_t>(next_block)]) fetch(bucket, /*prefetch=*/true);
  if (!grad_buffers_.empty() && makes_gradients(block, act))
    for (int bucket : buckets)
      if (!params_.buckets()[static_cast<std::size_t>(bucket)].keeps_grad) open_grads(bucket);
}

void DataParallel::after(int block, Act act, bool last) {
  const auto& buckets = buckets_of_[static_cast<std::size_t>(block)];
  for (int bucket : buckets) {
    State& state = states_[static_cast<std::size_t>(bucket)];
    if (state.weight_buffer >= 0) weight_buffers_[static_cast<std::size_t>(state.weight_buffer)].busy = false;
    if (!params_.buckets()[static_cast<std::size_t>(bucket)].keeps_grad) {
      if (makes_gradients(block, act)) close_grads(bucket);
    } else if (last && --state.blocks_left == 0 && options_.overlap_grad_reduce) {
      state.grads = start_reduce(bucket);
    }
  }
}

// The least recently used weight buffer that is free; negative when all are in use.
int DataParallel::free_buffer() const {
  int found = -1;
  for (std::size_t i = 0; i < weight_buffers_.size(); ++i) {
    if (weight_buffers_[i].busy) continue;
    if (found < 0 || weight_buffers_[i].used < weight_buffers_[static_cast<std::size_t>(found)].used)
      found = static_cast<int>(i);
  }
  return found;
}

void DataParallel::fetch(int index, bool prefetch) {
  State& state = states_[static_cast<std::size_t>(index)];
  Bucket& bucket = params_.buckets()[static_cast<std::size_t>(index)];
  if (!bucket.keeps_weight && state.weight_buffer < 0) {
    const int chosen = free_buffer();
    if (chosen < 0 && prefetch) return;
    require(chosen >= 0, "no room is left for the weights of a block");
    PoolBuffer& buffer = weight_buffers_[static_cast<std::size_t>(chosen)];
    if (buffer.bucket >= 0) {
      State& old = states_[static_cast<std::size_t>(buffer.bucket)];
      ops_->wait(std::exchange(old.weights, {}));
      old.weight_buffer = -1;
      params_.place_weights(params_.buckets()[static_cast<std::size_t>(buffer.bucket)], {});
    }
    buffer = {.bucket = index, .used = ++clock_};
    state.weight_buffer = chosen;
    const Tensor full = params_.weight_buffers()[static_cast<std::size_t>(chosen)].rows(0, bucket.elements());
    params_.place_weights(bucket, full);
    state.weights = replicas_of(bucket).all_gather(bucket.local_weight, full, ops_->record());
  }
  if (prefetch) return;
  if (state.weight_buffer >= 0) {
    PoolBuffer& buffer = weight_buffers_[static_cast<std::size_t>(state.weight_buffer)];
    buffer.busy = true;
    buffer.used = ++clock_;
  }
  ops_->wait(std::exchange(state.weights, {}));
}

void DataParallel::open_grads(int index) {
  State& state = states_[static_cast<std::size_t>(index)];
  Bucket& bucket = params_.buckets()[static_cast<std::size_t>(index)];
  int chosen = 0;  // the least recently used; its reduction is collected first
  for (std::size_t i = 0; i < grad_buffers_.size(); ++i) {
    const PoolBuffer &buffer = grad_buffers_[i], &best = grad_buffers_[static_cast<std::size_t>(chosen)];
    if (!buffer.busy && (best.busy || buffer.used < best.used)) chosen = static_cast<int>(i);
  }
  PoolBuffer& buffer = grad_buffers_[static_cast<std::size_t>(chosen)];
  require(!buffer.busy, "no room is left for the gradients of a block");
  collect_grads(chosen);
  buffer = {.bucket = index, .busy = true, .used = ++clock_};
  state.grad_buffer = chosen;
  const Tensor full = params_.grad_buffers()[static_cast<std::size_t>(chosen)].rows(0, bucket.elements());
  params_.place_grads(bucket, full);
  params_.empty_grads(*ops_, bucket);
}

void DataParallel::close_grads(int index) {
  const int buffer = std::exchange(states_[static_cast<std::size_t>(index)].grad_buffer, -1);
  grad_buffers_[static_cast<std::size_t>(buffer)].grads = start_reduce(index);
  grad_buffers_[static_cast<std::size_t>(buffer)].busy = false;
  params_.place_grads(params_.buckets()[static_cast<std::size_t>(index)], {});
  if (!options_.overlap_grad_reduce) collect_grads(buffer);
}

// Adds the reduced gradients of a buffer to the shard that is kept.
void DataParallel::collect_grads(int buffer) {
  const int index = std::exchange(grad_buffers_[static_cast<std::size_t>(buffer)].bucket, -1);
  if (index < 0) return;
  const Bucket& bucket = params_.buckets()[static_cast<std::size_t>(index)];
  ops_->wait(std::exchange(grad_buffers_[static_cast<std::size_t>(buffer)].grads, {}));
  const Tensor sum =
      params_.grad_buffers()[static_cast<std::size_t>(buffer)].rows(bucket.local_begin(), bucket.local_end());
  if (std::exchange(states_[static_cast<std::size_t>(index)].shard_is_empty, false))
    return (*ops_)(CopyArgs{.src = sum, .dst = bucket.local_grad});
  const std::array sources{bucket.local_grad, sum};
  (*ops_)(CombineArgs{.sources = sources, .out = bucket.local_grad});
}

void DataParallel::sum_replicas(int index) {
  const Bucket& bucket = params_.buckets()[static_cast<std::size_t>(index)];
  for (const ReplicaSum& sum : states_[static_cast<std::size_t>(index)].sums)
    ops_->wait(sum.group->all_reduce(bucket.grad.rows(sum.begin, sum.end), Reduce::sum, ops_->record()));
}

Ticket DataParallel::start_reduce(int index) {
  Bucket& bucket = params_.buckets()[static_cast<std::size_t>(index)];
  params_.complete_grads(*ops_, bucket);
  sum_replicas(index);
  Comm& replicas = replicas_of(bucket);
  if (bucket.shards.count == 1) return replicas.all_reduce(bucket.grad, Reduce::sum, ops_->record());
  const Tensor local = bucket.grad.rows(bucket.local_begin(), bucket.local_end());
  return replicas.reduce_scatter(bucket.grad, local, Reduce::sum, ops_->record());
}

void DataParallel::finish_gradients() {
  begun_ = false;
  for (std::size_t i = 0; i < grad_buffers_.size(); ++i) {  // the oldest first
    int oldest = -1;
    for (std::size_t j = 0; j < grad_buffers_.size(); ++j)
      if (grad_buffers_[j].bucket >= 0 &&
          (oldest < 0 || grad_buffers_[j].used < grad_buffers_[static_cast<std::size_t>(oldest)].used))
        oldest = static_cast<int>(j);
    if (oldest >= 0) collect_grads(oldest);
  }
  for (std::size_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    const Bucket& bucket = params_.buckets()[i];
    if (bucket.keeps_grad && !options_.overlap_grad_reduce) state.grads = start_reduce(static_cast<int>(i));
    ops_->wait(std::exchange(state.grads, {}));
    if (std::exchange(state.shard_is_empty, false)) (*ops_)(FillArgs{.out = bucket.local_grad, .value = 0});
    state.blocks_left = static_cast<int>(bucket.blocks.size());
  }
  for (const Bucket& bucket : params_.buckets())
    if (bucket.params.front()->spec.on_another_stage)
      ops_->wait(groups_.embed.all_reduce(bucket.local_grad, Reduce::sum, ops_->record()));
}

void DataParallel::all_gather_params() {
  const auto buckets = params_.buckets();
  for (std::size_t i = buckets.size(); i-- > 0;) {  // in the order of use
    Bucket& bucket = buckets[i];
    State& state = states_[i];
    if (bucket.shards.count == 1) continue;
    if (bucket.keeps_weight) {
      state.weights = replicas_of(bucket).all_gather(bucket.local_weight, bucket.weight, ops_->record());
      if (!options_.overlap_param_gather) ops_->wait(std::exchange(state.weights, {}));
    } else if (state.weight_buffer >= 0) {  // what was fetched is old now
      weight_buffers_[static_cast<std::size_t>(state.weight_buffer)] = {};
      state.weight_buffer = -1;
      params_.place_weights(bucket, {});
    }
  }
}

void DataParallel::wait_for_weights() {
  for (State& state : states_) ops_->wait(std::exchange(state.weights, {}));
}

}  // namespace tera
