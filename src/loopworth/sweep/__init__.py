"""A sweep: many run folders, done by engines, told by what is on disk."""
