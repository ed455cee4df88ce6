// Bindings of the operations on rows.

#include "bind.h"

namespace baton {

void bind_rowwise(nanobind::module_&) {}

}  // namespace baton
