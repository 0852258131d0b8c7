"""Which rows a step reads: a seeded permutation of all rows per epoch, and nothing to remember.

The rows of step t are a function of (seed, t) alone. So a run resumes without a data state, on any
number of processes, and each process takes its own share of the same global step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loopworth.data.shuffle import permute
from loopworth.data.tokens import TokenSplit

_TABLE_ROWS = 2**20  # 4 MB; looking up a step is then ten times faster than computing it


class Batches:
    """The batches of a run.

    split, context   what rows are cut from, and their length
    rows_per_step    rows of a step, over all processes and micro-batches
    seed             of the order

    Steps follow each other through an epoch and into the next; every row is read once an epoch.
    Raises ValueError where the split has no row of that context.
    """

    def __init__(self, split: TokenSplit, context: int, rows_per_step: int, seed: int = 0) -> None:
        self.split, self.context, self.rows_per_step = split, context, rows_per_step
        self.n_rows, self.seed = split.n_rows(context), seed
        self._tables: dict[int, NDArray[np.int32]] = {}
        if rows_per_step < 1:
            raise ValueError(f"rows_per_step={rows_per_step} must be 1 or more")
        if self.n_rows == 0:
            raise ValueError(
                f"{split.name} has {split.n_tokens} tokens, too few for one row of context "
                f"{context}; use more text or a shorter context"
            )

    def step(self, t: int, *, rank: int = 0, world: int = 1) -> NDArray[np.int64]:
        """Return the row indices that process `rank` of `world` reads in step t, counted from 0.

        The shares are contiguous: put end to end in order of rank they are the step of one process.
        Raises ValueError where the rows of a step cannot be shared equally.
        """
        if not 0 <= rank < world:
            raise ValueError(f"rank={rank} must be from 0 to world - 1 = {world - 1}")
        if self.rows_per_step % world:
            raise ValueError(
                f"rows_per_step={self.rows_per_step} cannot be shared by world={world} processes; "
                "use a multiple"
            )
        share = self.rows_per_step // world
        first = t * self.rows_per_step + rank * share
        place = np.arange(first, first + share, dtype=np.int64)
        epoch_N, within_N = np.divmod(place, self.n_rows)
        rows_N = np.empty(share, np.int64)
        for epoch in np.unique(
            epoch_N
        ):  # one, or two at the seam of epochs, unless the set is tiny
            mine = epoch_N == epoch
            rows_N[mine] = self._permuted(within_N[mine], int(epoch))
        return rows_N

    def _permuted(self, index_N: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the rows at places of an epoch; the order of a small set is kept as a table."""
        if self.n_rows > _TABLE_ROWS:
            return permute(index_N, self.n_rows, self.seed, epoch)
        if epoch not in self._tables:
            order = permute(np.arange(self.n_rows), self.n_rows, self.seed, epoch)
            self._tables = {epoch: order.astype(np.int32)}
        return self._tables[epoch][index_N].astype(np.int64)

    def rows(self, t: int, *, rank: int = 0, world: int = 1) -> NDArray[np.int64]:
        """Return the tokens of `step`: int64 (rows, context + 1)."""
        return self.split.rows(self.step(t, rank=rank, world=world), self.context)

    def epoch(self, t: int) -> float:
        """Return how many times all rows have been read before step t: 0.5 is half of them."""
        return t * self.rows_per_step / self.n_rows

    @property
    def steps_per_epoch(self) -> int:
        """Return how many whole steps read no row twice."""
        return self.n_rows // self.rows_per_step
