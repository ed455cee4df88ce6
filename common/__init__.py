"""What two or more of the other packages use: ids, errors, configuration, messages, wire, log,
metrics, sampling, kernels, paged KV, models and the engine. It imports none of the others."""
