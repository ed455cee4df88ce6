"""The operations as Triton kernels, for CUDA devices. All but `choice`, `configs` and what ends in
`rows` is imported only where `choice` says that they compute; on a CPU they run in Triton's
interpreter, where tests asked for it."""
