// All of attention that depends on the instructions; see `for_each_isa.h`.
#include "attention_tile.h"
#include "attention_blocks.h"
#include "attention_few.h"
#include "attention_kernel.h"
