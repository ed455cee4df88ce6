// Bindings of the operations on rows.

#include <nanobind/nanobind.h>

#include <vector>

#include "bind.h"
#include "rowwise.h"
#include "sampling.h"

namespace nb = nanobind;

namespace baton {
namespace {

void* at(uintptr_t address) { return reinterpret_cast<void*>(address); }

void norm_at(bool float32, uintptr_t x, uintptr_t residual, uintptr_t weight, float eps,
             int64_t n_rows, int n, uintptr_t out) {
  norm({float32 ? Dtype::float32 : Dtype::bfloat16, at(x), at(residual), at(weight), eps, n_rows, n,
        at(out)});
}

void argmax_at(uintptr_t logits, int64_t n_rows, int64_t n, uintptr_t out) {
  argmax(static_cast<const float*>(at(logits)), n_rows, n, static_cast<int64_t*>(at(out)));
}

template <class T>
const T* array_at(uintptr_t address) { return reinterpret_cast<const T*>(address); }

void draw_at(uintptr_t logits, uintptr_t scales, uintptr_t min_ps, uintptr_t top_ps,
             uintptr_t top_ks, uintptr_t uniforms, int64_t n_draws, int64_t n, int weight_bits,
             uintptr_t tokens) {
  std::vector<Draw> draws;
  for (int64_t i = 0; i < n_draws; i++) {
    draws.push_back({array_at<float>(array_at<uintptr_t>(logits)[i]), array_at<double>(scales)[i],
                     array_at<double>(min_ps)[i], array_at<double>(top_ps)[i],
                     array_at<int64_t>(top_ks)[i], array_at<int64_t>(uniforms)[i]});
  }
  draw_all(draws.data(), n_draws, n, weight_bits, static_cast<int64_t*>(at(tokens)));
}

}  // namespace

void bind_rowwise(nb::module_& m) {
  const nb::call_guard<nb::gil_scoped_release> unlocked;
  m.def("norm", &norm_at, unlocked);
  m.def("argmax", &argmax_at, unlocked);
  m.def("draw", &draw_at, unlocked);
}

}  // namespace baton
