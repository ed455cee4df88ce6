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

// One word says how many tasks the job has and which is next, so that taking a task and knowing
// that it exists are one atomic step: a worker that comes late finds next >= n, whatever job it
// came for, and touches nothing.
constexpr uint64_t next_of(uint64_t word) { return word & 0xffffffff; }
constexpr uint64_t n_of(uint64_t word) { return word >> 32; }

class Pool {
 public:
  explicit Pool(int n_workers) {
    sigset_t all, before;  // signals are the main thread's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < n_workers; i++) workers_.emplace_back([this] { work(); });
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
    word_.store(static_cast<uint64_t>(n_tasks) << 32);
    if (n_asleep_.load() > 0) {
      { std::lock_guard<std::mutex> lock(mutex_); }
      wake_.notify_all();
    }
    take_tasks();
    for (int spins = 0; n_done_.load(std::memory_order_acquire) < n_tasks; spins++) {
      if (spins < 4000) __builtin_ia32_pause();
      else sched_yield();  // a worker was descheduled with a task in its hands
    }
    busy_.store(false, std::memory_order_release);
    return true;
  }

 private:
  void take_tasks() {
    int64_t n_mine = 0;
    for (;;) {
      const uint64_t word = word_.fetch_add(1, std::memory_order_acq_rel);
      if (next_of(word) >= n_of(word)) break;
      task_(context_, static_cast<int64_t>(next_of(word)));
      n_mine++;
    }
    if (n_mine > 0) n_done_.fetch_add(n_mine, std::memory_order_release);
  }

  bool has_task() const {
    const uint64_t word = word_.load();
    return next_of(word) < n_of(word);
  }

  void work() {
    pthread_setname_np(pthread_self(), "baton-kernel");
    while (!stopping_.load(std::memory_order_relaxed)) {
      if (spin()) take_tasks();
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

  alignas(64) std::atomic<uint64_t> word_{0};
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
