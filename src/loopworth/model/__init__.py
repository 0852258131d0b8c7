"""The looped transformer."""
