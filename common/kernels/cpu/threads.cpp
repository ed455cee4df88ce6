#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace baton {
namespace {

using Clock = std::chrono::steady_clock;

// The gap between two kernels of one pass is microseconds of Python; waking a thread costs more.
constexpr auto SPIN = std::chrono::microseconds(150);

// One thread's run of tasks: the next and the end, in one word, so that taking a task and knowing
// that it exists are one atomic step. Whoever comes late finds next >= end, whatever job it came
// for, and touches nothing.
struct alignas(64) Run {
  std::atomic<uint64_t> word{0};

  static uint64_t next(uint64_t word) { return word & 0xffffffff; }
  static uint64_t end(uint64_t word) { return word >> 32; }

  void set(int64_t begin, int64_t end) {
    word.store(static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(begin));
  }

  bool has_task() const {
    const uint64_t now = word.load();
    return next(now) < end(now);
  }

  // A task's index, or -1. The look before keeps `next` from growing without end.
  int64_t take() {
    if (!has_task()) return -1;
    const uint64_t taken = word.fetch_add(1, std::memory_order_acq_rel);
    return next(taken) < end(taken) ? static_cast<int64_t>(next(taken)) : -1;
  }
};

class Pool {
 public:
  explicit Pool(int n_workers) : runs_(n_workers + 1) {
    sigset_t all, before;  // signals are the main thread's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < n_workers; i++) workers_.emplace_back([this, i] { work(i + 1); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_.store(true);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int n_workers() const { return static_cast<int>(workers_.size()); }

  // False: another caller has the workers.
  bool try_run(detail::Task task, void* context, int64_t n_tasks) {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    task_ = task;
    context_ = context;
    n_done_.store(0, std::memory_order_relaxed);
    const int64_t n_runs = static_cast<int64_t>(runs_.size());
    for (int64_t i = 0; i < n_runs; i++) {
      runs_[i].set(n_tasks * i / n_runs, n_tasks * (i + 1) / n_runs);
    }
    if (n_asleep_.load() > 0) {
      { std::lock_guard<std::mutex> lock(mutex_); }
      wake_.notify_all();
    }
    take_tasks(0);
    for (int spins = 0; n_done_.load(std::memory_order_acquire) < n_tasks; spins++) {
      if (spins < 4000) __builtin_ia32_pause();
      else sched_yield();  // a worker was descheduled with a task in its hands
    }
    busy_.store(false, std::memory_order_release);
    return true;
  }

 private:
  void take_tasks(size_t own) {
    int64_t n_mine = 0;
    for (size_t i = 0; i < runs_.size(); i++) {
      Run& run = runs_[(own + i) % runs_.size()];
      for (int64_t task; (task = run.take()) >= 0; n_mine++) task_(context_, task);
    }
    if (n_mine > 0) n_done_.fetch_add(n_mine, std::memory_order_release);
  }

  bool has_task() const {
    for (const Run& run : runs_) {
      if (run.has_task()) return true;
    }
    return false;
  }

  void work(int own) {
    pthread_setname_np(pthread_self(), "baton-kernel");
    while (!stopping_.load(std::memory_order_relaxed)) {
      if (spin()) take_tasks(own);
      else sleep();
    }
  }

  // True: there is a task to take.
  bool spin() const {
    const auto until = Clock::now() + SPIN;
    do {
      for (int i = 0; i < 64; i++) {
        if (has_task()) return true;
        __builtin_ia32_pause();
      }
    } while (Clock::now() < until);
    return false;
  }

  void sleep() {
    std::unique_lock<std::mutex> lock(mutex_);
    n_asleep_.fetch_add(1);  // before looking once more: the caller looks here after it publishes
    wake_.wait(lock, [this] { return has_task() || stopping_.load(); });
    n_asleep_.fetch_sub(1);
  }

  std::vector<Run> runs_;  // of the caller, then of each worker
  alignas(64) std::atomic<int64_t> n_done_{0};
  alignas(64) std::atomic<bool> busy_{false};
  detail::Task task_ = nullptr;
  void* context_ = nullptr;
  std::atomic<int> n_asleep_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

// Never destroyed: at exit a worker may be in the middle of a spin.
Pool*& pool() {
  static Pool* the_pool = new Pool(0);
  return the_pool;
}

}  // namespace

void set_threads(int n) {
  if (n == n_threads()) return;
  delete pool();
  pool() = new Pool(n - 1);
}

int n_threads() { return pool()->n_workers() + 1; }

void detail::run(Task task, void* context, int64_t n_tasks) {
  if (n_tasks > 1 && pool()->n_workers() > 0 && pool()->try_run(task, context, n_tasks)) return;
  for (int64_t i = 0; i < n_tasks; i++) task(context, i);
}

}  // namespace baton
