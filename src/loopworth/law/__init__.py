"""The law of recurrence equivalence: its gains, its solver, its intervals."""
