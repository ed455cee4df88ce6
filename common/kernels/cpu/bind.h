// What each file of bindings adds to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace baton {

void bind_attention(nanobind::module_& m);
void bind_layers(nanobind::module_& m);
void bind_products(nanobind::module_& m);
void bind_rowwise(nanobind::module_& m);

}  // namespace baton
