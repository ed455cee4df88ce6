// The threads that kernels share out their work over: the caller and n - 1 workers of our own.
//
// Tasks are independent. Each thread starts with a run of neighbours, so that what they stream
// from memory is one stream, and takes single ones of other threads' runs when its own is done. A
// kernel must not let its results depend on which thread ran what. Not safe across fork.
#pragma once

#include <cstdint>
#include <type_traits>

namespace baton {

constexpr int MAX_THREADS = 256;

// Compute threads in all, the caller's included. No kernel may be running.
void set_threads(int n);
int n_threads();

namespace detail {
using Task = void (*)(void* context, int64_t index);
void run(Task task, void* context, int64_t n_tasks);
}  // namespace detail

// Calls f(index) once for each index in 0 .. n_tasks - 1; returns when all are done. f must not
// throw. What a task needs as scratch is thread_local: while another caller holds the workers, or
// from within a task, all tasks run on the calling thread. n_tasks < 2^32.
template <class F>
void parallel_for(int64_t n_tasks, F&& f) {
  using Function = std::remove_reference_t<F>;
  detail::run([](void* context, int64_t index) { (*static_cast<Function*>(context))(index); },
              const_cast<void*>(static_cast<const void*>(&f)), n_tasks);
}

}  // namespace baton
