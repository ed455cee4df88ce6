"""Models: what one is (`spec`), where its weights come from (GGUF, safetensors), how they are
packed and shared between the processes of a host, and the forward passes, one file a family.
`spec`, `hf_config` and `gguf_file` do without torch."""
