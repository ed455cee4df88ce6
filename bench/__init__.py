"""Benchmarks that drive a running server through its public HTTP interface, and one-part benches.
Nothing in the product imports it but the `baton bench` command."""
