"""C++ kernels for x86-64: the compiled module, and what chooses, packs and calls it."""
