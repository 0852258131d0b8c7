"""One training run, from a spec to its result."""
