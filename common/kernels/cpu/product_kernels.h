// All of products that depends on the instructions; see `for_each_isa.h`.
#include "product_tiles.h"
#include "weight_formats.h"
#include "quantised_tiles.h"
#include "product_blocks.h"
