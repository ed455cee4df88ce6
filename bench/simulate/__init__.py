"""The workers' own cores under a virtual clock: no model, no process, no waiting."""
