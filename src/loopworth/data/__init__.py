"""Text becomes token shards, and shards become batches."""
