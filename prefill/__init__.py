"""The prefill worker: computes prompts in batched chunks, samples each first token, and keeps the
finished pages readable until the decode side has them. It never imports `decode` or `launch`."""
