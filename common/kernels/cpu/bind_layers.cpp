// Bindings of a model's layers, run in one call.

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bind.h"
#include "layers.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace baton {
namespace {

const char* bytes_at(uintptr_t address) { return reinterpret_cast<const char*>(address); }
void* memory_at(uintptr_t address) { return reinterpret_cast<void*>(address); }

void run(Layers& layers, AttentionPlan& plan, const Turns& turns,
         const std::vector<uintptr_t>& pages, uintptr_t residual, uintptr_t out) {
  if (pages.size() != 2 * layers.size()) throw nb::value_error("pages of other layers");
  std::vector<LayerPages> of_layers;
  for (size_t i = 0; i < pages.size(); i += 2) {
    of_layers.push_back({memory_at(pages[i]), memory_at(pages[i + 1])});
  }
  layers.run(plan, turns, of_layers.data(), memory_at(residual), memory_at(out));
}

}  // namespace

void bind_layers(nb::module_& m) {
  nb::class_<Layers>(m, "Layers")
      .def("__init__",
           [](Layers* self, bool float32, int hidden, float eps, uintptr_t final_norm) {
             new (self) Layers(float32 ? Dtype::float32 : Dtype::bfloat16, hidden, eps,
                               memory_at(final_norm));
           },
           nb::kw_only(), "float32"_a, "hidden"_a, "eps"_a, "final_norm"_a)
      .def("add",
           [](Layers& self, uintptr_t attn_norm, uintptr_t mlp_norm, uintptr_t q_norm,
              uintptr_t k_norm, float eps, const Matrix& qkv, uintptr_t qkv_bias, const Matrix& o,
              uintptr_t o_bias, const Matrix& gate_up, uintptr_t gate_up_bias, const Matrix& down,
              uintptr_t down_bias) {
             self.add({memory_at(attn_norm), memory_at(mlp_norm),
                       {memory_at(q_norm), memory_at(k_norm), eps},
                       {qkv, bytes_at(qkv_bias)}, {o, bytes_at(o_bias)},
                       {gate_up, bytes_at(gate_up_bias)}, {down, bytes_at(down_bias)}});
           },
           nb::kw_only(), "attn_norm"_a, "mlp_norm"_a, "q_norm"_a, "k_norm"_a, "eps"_a, "qkv"_a,
           "qkv_bias"_a, "o"_a, "o_bias"_a, "gate_up"_a, "gate_up_bias"_a, "down"_a, "down_bias"_a)
      .def("run", &run, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace baton
