"""How many recurrences run at a step, and how many of the last carry gradient."""
