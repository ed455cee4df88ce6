"""The operations of a model's pass: a slow true reference, the kernels, and one dispatch."""
