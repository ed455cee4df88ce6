"""Moves KV pages, as opaque bytes, between workers: four verbs, one file per backend.
It knows nothing of layers, heads, requests or roles."""
