#include "tera/optim/data_parallel.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tera/base/error.h"

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
  weight_rooms_.resize(params.weight_rooms().size());
  grad_rooms_.resize(params.grad_rooms().size());
}

// Neighbours in memory become one sum; between them are only gaps, which are zero.
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
      const std::int64_t end = begin + part.held()[0] * width;
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
    states_[i].share_empty = !bucket.keeps_grad;
    if (bucket.keeps_grad) params_.empty_grads(*ops_, bucket);
  }
}

void DataParallel::before(int block, Act act, int next_block) {
  require(begun_ || !makes_gradients(block, act), "a block makes gradients before a step's gradients have begun");
  const auto& buckets = buckets_of_[static_cast<std::size_t>(block)];
  for (int bucket : buckets) fetch(bucket, /*ahead=*/false);
  if (next_block >= 0 && !weight_rooms_.empty())
    for (int bucket : buckets_of_[static_cast<std::size_t>(next_block)]) fetch(bucket, /*ahead=*/true);
  if (!grad_rooms_.empty() && makes_gradients(block, act))
    for (int bucket : buckets)
      if (!params_.buckets()[static_cast<std::size_t>(bucket)].keeps_grad) open_grads(bucket);
}

void DataParallel::after(int block, Act act, bool last) {
  const auto& buckets = buckets_of_[static_cast<std::size_t>(block)];
  for (int bucket : buckets) {
    State& state = states_[static_cast<std::size_t>(bucket)];
    if (state.weight_room >= 0) weight_rooms_[static_cast<std::size_t>(state.weight_room)].busy = false;
    if (!params_.buckets()[static_cast<std::size_t>(bucket)].keeps_grad) {
      if (makes_gradients(block, act)) close_grads(bucket);
    } else if (last && --state.blocks_left == 0 && options_.overlap_grad_reduce) {
      state.grads = start_reduce(bucket);
    }
  }
}

// The one that was not used for longest; negative when all are in use.
int DataParallel::free_room() const {
  int found = -1;
  for (std::size_t i = 0; i < weight_rooms_.size(); ++i) {
    if (weight_rooms_[i].busy) continue;
    if (found < 0 || weight_rooms_[i].used < weight_rooms_[static_cast<std::size_t>(found)].used)
      found = static_cast<int>(i);
  }
  return found;
}

void DataParallel::fetch(int index, bool ahead) {
  State& state = states_[static_cast<std::size_t>(index)];
  Bucket& bucket = params_.buckets()[static_cast<std::size_t>(index)];
  if (!bucket.keeps_weight && state.weight_room < 0) {
    const int chosen = free_room();
    if (chosen < 0 && ahead) return;
    require(chosen >= 0, "no room is left for the weights of a block");
    Room& room = weight_rooms_[static_cast<std::size_t>(chosen)];
    if (room.bucket >= 0) {
      State& old = states_[static_cast<std::size_t>(room.bucket)];
      ops_->wait(std::exchange(old.weights, {}));
      old.weight_room = -1;
      params_.place_weights(params_.buckets()[static_cast<std::size_t>(room.bucket)], {});
    }
    room = {.bucket = index, .used = ++clock_};
    state.weight_room = chosen;
    const Tensor whole = params_.weight_rooms()[static_cast<std::size_t>(chosen)].rows(0, bucket.elements());
    params_.place_weights(bucket, whole);
    state.weights = replicas_of(bucket).all_gather(bucket.own_weight, whole, ops_->record());
  }
  if (ahead) return;
  if (state.weight_room >= 0) {
    Room& room = weight_rooms_[static_cast<std::size_t>(state.weight_room)];
    room.busy = true;
    room.used = ++clock_;
  }
  ops_->wait(std::exchange(state.weights, {}));
}

void DataParallel::open_grads(int index) {
  State& state = states_[static_cast<std::size_t>(index)];
  Bucket& bucket = params_.buckets()[static_cast<std::size_t>(index)];
  int chosen = 0;  // the oldest; what is still on its way from it is collected first
  for (std::size_t i = 0; i < grad_rooms_.size(); ++i) {
    const Room &room = grad_rooms_[i], &best = grad_rooms_[static_cast<std::size_t>(chosen)];
    if (!room.busy && (best.busy || room.used < best.used)) chosen = static_cast<int>(i);
  }
  Room& room = grad_rooms_[static_cast<std::size_t>(chosen)];
  require(!room.busy, "no room is left for the gradients of a block");
  collect_grads(chosen);
  room = {.bucket = index, .busy = true, .used = ++clock_};
  state.grad_room = chosen;
  const Tensor whole = params_.grad_rooms()[static_cast<std::size_t>(chosen)].rows(0, bucket.elements());
  params_.place_grads(bucket, whole);
  params_.empty_grads(*ops_, bucket);
}

void DataParallel::close_grads(int index) {
  const int room = std::exchange(states_[static_cast<std::size_t>(index)].grad_room, -1);
  grad_rooms_[static_cast<std::size_t>(room)].grads = start_reduce(index);
  grad_rooms_[static_cast<std::size_t>(room)].busy = false;
  params_.place_grads(params_.buckets()[static_cast<std::size_t>(index)], {});
  if (!options_.overlap_grad_reduce) collect_grads(room);
}

// Adds the sum over ranks that was made in a room to the share that is kept.
void DataParallel::collect_grads(int room) {
  const int index = std::exchange(grad_rooms_[static_cast<std::size_t>(room)].bucket, -1);
  if (index < 0) return;
  const Bucket& bucket = params_.buckets()[static_cast<std::size_t>(index)];
  ops_->wait(std::exchange(grad_rooms_[static_cast<std::size_t>(room)].grads, {}));
  const Tensor sum = params_.grad_rooms()[static_cast<std::size_t>(room)].rows(bucket.own_begin(), bucket.own_end());
  if (std::exchange(states_[static_cast<std::size_t>(index)].share_empty, false))
    return ops_->copy({.src = sum, .dst = bucket.own_grad});
  const std::array sources{bucket.own_grad, sum};
  ops_->combine({.sources = sources, .out = bucket.own_grad});
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
  if (bucket.shares.count == 1) return replicas.all_reduce(bucket.grad, Reduce::sum, ops_->record());
  const Tensor own = bucket.grad.rows(bucket.own_begin(), bucket.own_end());
  return replicas.reduce_scatter(bucket.grad, own, Reduce::sum, ops_->record());
}

void DataParallel::finish_gradients() {
  begun_ = false;
  for (std::size_t i = 0; i < grad_rooms_.size(); ++i) {  // the oldest first
    int oldest = -1;
    for (std::size_t j = 0; j < grad_rooms_.size(); ++j)
      if (grad_rooms_[j].bucket >= 0 &&
          (oldest < 0 || grad_rooms_[j].used < grad_rooms_[static_cast<std::size_t>(oldest)].used))
        oldest = static_cast<int>(j);
    if (oldest >= 0) collect_grads(oldest);
  }
  for (std::size_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    const Bucket& bucket = params_.buckets()[i];
    if (bucket.keeps_grad && !options_.overlap_grad_reduce) state.grads = start_reduce(static_cast<int>(i));
    ops_->wait(std::exchange(state.grads, {}));
    if (std::exchange(state.share_empty, false)) ops_->fill({.out = bucket.own_grad, .value = 0});
    state.blocks_left = static_cast<int>(bucket.blocks.size());
  }
  for (const Bucket& bucket : params_.buckets())
    if (bucket.params.front()->spec.on_another_stage)
      ops_->wait(groups_.embed.all_reduce(bucket.own_grad, Reduce::sum, ops_->record()));
}

void DataParallel::hand_out_weights() {
  const auto buckets = params_.buckets();
  for (std::size_t i = buckets.size(); i-- > 0;) {  // in the order of use
    Bucket& bucket = buckets[i];
    State& state = states_[i];
    if (bucket.shares.count == 1) continue;
    if (bucket.keeps_weight) {
      state.weights = replicas_of(bucket).all_gather(bucket.own_weight, bucket.weight, ops_->record());
      if (!options_.overlap_param_gather) ops_->wait(std::exchange(state.weights, {}));
    } else if (state.weight_room >= 0) {  // what was fetched is old now
      weight_rooms_[static_cast<std::size_t>(state.weight_room)] = {};
      state.weight_room = -1;
      params_.place_weights(bucket, {});
    }
  }
}

void DataParallel::wait_for_weights() {
  for (State& state : states_) ops_->wait(std::exchange(state.weights, {}));
}

}  // namespace tera
