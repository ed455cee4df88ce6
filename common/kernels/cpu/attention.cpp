#include "attention.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "bf16.h"
#include "isa.h"
#include "threads.h"
#include "vector_exp.h"

#define KERNELS "attention_kernels.h"
#include "for_each_isa.h"

namespace baton {
namespace {

constexpr int TILE_QUERY_ROWS = 192;  // enough that packing a block is a small part of its cost
constexpr int CUT_ROWS = 32;          // tasks of more rows are not cut along the keys
constexpr int TASKS_A_THREAD = 4;
constexpr int PACKING_ROWS = 12;  // reading a block costs as much as so many query rows of it

using Kernel = void (*)(const AttentionPlan&, const AttentionTensors&, const AttentionTask& task,
                        const AttentionTask* next, float* partials);

struct Kernels {
  Kernel run, merge;
};

Kernels kernels(Dtype dtype) {
  const bool f32 = dtype == Dtype::float32;
  switch (isa()) {
    case Isa::avx512bf16:
      if (!f32) return {avx512bf16::run_task<avx512bf16::ByPairs>, avx512bf16::merge_task<bf16>};
      return {avx512::run_task<avx512::ByFloat<float>>, avx512::merge_task<float>};
    case Isa::avx512:
      if (!f32) return {avx512::run_task<avx512::ByFloat<bf16>>, avx512::merge_task<bf16>};
      return {avx512::run_task<avx512::ByFloat<float>>, avx512::merge_task<float>};
    default:
      if (!f32) return {avx2::run_task<avx2::ByFloat<bf16>>, avx2::merge_task<bf16>};
      return {avx2::run_task<avx2::ByFloat<float>>, avx2::merge_task<float>};
  }
}

double cost_of(const AttentionTask& task, int n_rep) {
  return double(task.end_block - task.first_block) * (PACKING_ROWS + task.n_queries * n_rep);
}

bool costs_more(const AttentionTask& a, const AttentionTask& b) { return a.cost > b.cost; }

// Each thread starts with a run of neighbours (see threads.h): makes the runs cost the same. Where
// all tasks do, they stay as they are, the heads of a sequence together.
void share_out(std::vector<AttentionTask>& tasks, int n_threads) {
  if (n_threads < 2 || std::none_of(tasks.begin(), tasks.end(), [&](const AttentionTask& task) {
        return task.cost != tasks[0].cost;
      })) {
    return;
  }
  std::stable_sort(tasks.begin(), tasks.end(), costs_more);
  struct Run {
    double cost;
    size_t next, end;
  };
  std::vector<Run> runs;
  for (int64_t i = 0; i < n_threads; i++) {
    const size_t n = tasks.size();
    runs.push_back({0, n * i / n_threads, n * (i + 1) / n_threads});
  }
  std::vector<AttentionTask> shared(tasks.size());
  for (const AttentionTask& task : tasks) {
    Run* least = nullptr;
    for (Run& run : runs) {
      if (run.next < run.end && (!least || run.cost < least->cost)) least = &run;
    }
    least->cost += task.cost;
    shared[least->next++] = task;
  }
  tasks = std::move(shared);
}

}  // namespace

AttentionPlan::AttentionPlan(const Sequences& sequences, const PageGeometry& geometry, int n_rep,
                             int n_threads)
    : sequences(sequences), geometry(geometry), n_rep(n_rep) {
  const int most = std::max(1, TILE_QUERY_ROWS / n_rep);
  std::vector<AttentionTask> whole;  // of one KV head
  double total = 0;
  for (int b = 0; b < sequences.n_sequences; b++) {
    const int64_t n_rows = sequences.start_B1[b + 1] - sequences.start_B1[b];
    const int64_t n_tiles = (n_rows + most - 1) / most;
    for (int64_t tile = 0; tile < n_tiles; tile++) {
      const int begin = n_rows * tile / n_tiles, end = n_rows * (tile + 1) / n_tiles;
      AttentionTask task = {b, 0, begin, end - begin, 0, 0, -1, 0};
      task.end_block = (sequences.len_B[b] - n_rows + end + KEY_BLOCK - 1) / KEY_BLOCK;
      task.cost = cost_of(task, n_rep);
      total += task.cost * geometry.n_kv_heads;
      whole.push_back(task);
    }
  }
  const double share = n_threads > 1 ? total / (n_threads * TASKS_A_THREAD) : total;
  for (AttentionTask task : whole) {
    for (task.kv_head = 0; task.kv_head < geometry.n_kv_heads; task.kv_head++) add(task, share);
  }
  share_out(tasks, n_threads);
}

void AttentionPlan::add(AttentionTask whole, double share) {
  const int n_blocks = whole.end_block, n_rows = whole.n_queries * n_rep;
  const int n_parts = std::min<double>(n_blocks, std::ceil(whole.cost / share));
  if (n_parts < 2 || n_rows > CUT_ROWS) {
    tasks.push_back(whole);
    return;
  }
  whole.partials = partials.size();
  cut.push_back(whole);
  const int64_t n_floats = partial_floats(n_rows, geometry.head_dim);
  partials.resize(partials.size() + n_blocks * n_floats);
  for (int64_t part = 0; part < n_parts; part++) {
    AttentionTask task = whole;
    task.first_block = n_blocks * part / n_parts;
    task.end_block = n_blocks * (part + 1) / n_parts;
    task.partials = whole.partials + task.first_block * n_floats;
    task.cost = cost_of(task, n_rep);
    tasks.push_back(task);
  }
}

void attend(AttentionPlan& plan, const AttentionTensors& tensors, Dtype dtype) {
  const Kernels chosen = kernels(dtype);
  float* partials = plan.partials.data();
  const auto at = [&](const AttentionTask& task) {
    return task.partials < 0 ? nullptr : partials + task.partials;
  };
  const std::vector<AttentionTask>& tasks = plan.tasks;
  const int64_t n_tasks = tasks.size();
  parallel_for(n_tasks, [&](int64_t i) {
    const AttentionTask* next = i + 1 < n_tasks ? &tasks[i + 1] : nullptr;
    chosen.run(plan, tensors, tasks[i], next, at(tasks[i]));
  });
  parallel_for(plan.cut.size(), [&](int64_t i) {
    chosen.merge(plan, tensors, plan.cut[i], nullptr, at(plan.cut[i]));
  });
}

float* attention_scratch(int64_t n_floats) {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<float, Free> memory;
  thread_local int64_t n_have = 0;
  if (n_have < n_floats) {
    n_have = round_up(n_floats, 1024);
    memory.reset(static_cast<float*>(std::aligned_alloc(64, n_have * sizeof(float))));
  }
  return memory.get();
}

}  // namespace baton
