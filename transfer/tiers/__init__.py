"""Memory that a worker has beside its pool: regions like any other, pulled from and into."""
