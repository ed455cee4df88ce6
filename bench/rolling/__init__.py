"""A server under a steady load while its workers are restarted, and one joins and leaves."""
