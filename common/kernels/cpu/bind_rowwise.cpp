// Bindings of the operations on rows.

#include <nanobind/nanobind.h>

#include "bind.h"
#include "rowwise.h"

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

}  // namespace

void bind_rowwise(nb::module_& m) {
  const nb::call_guard<nb::gil_scoped_release> unlocked;
  m.def("norm", &norm_at, unlocked);
  m.def("argmax", &argmax_at, unlocked);
}

}  // namespace baton
