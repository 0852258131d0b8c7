"""The validation loss: in float32, on a fixed set, the same for any number of processes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from loopworth.data import TokenData
from loopworth.spec import RunSpec
from loopworth.train.machine import Place, full_precision
from loopworth.train.parallel import Replica, World

# Tokens of a forward pass. Fixed, and the last pass filled up, so that every row is computed in a
# batch of one shape wherever it lands.
_TOKENS_AT_ONCE = {"cpu": 2**12, "cuda": 2**15, "mps": 2**13}


@dataclass(frozen=True, slots=True)
class Validation:
    """Mean loss in nats per token, the same in bits per byte of text, and the targets behind it."""

    loss: float
    bits_per_byte: float
    tokens: int


def validation_rows(run: RunSpec, data: TokenData) -> int:
    """Return how many rows validation uses: the first ones, up to `validation_tokens`.

    Raises ValueError where the split has not one row.
    """
    context = run.model.context
    have = data.validation.n_rows(context)
    if have == 0:
        raise ValueError(
            f"the validation split has {data.validation.n_tokens} tokens, too few for one row of "
            f"context {context}; prepare the data with a larger validation share, or use a "
            "shorter context"
        )
    wanted = have if run.validation_tokens is None else run.validation_tokens // context
    return min(have, wanted)


@torch.no_grad()
def validate(
    replica: Replica, run: RunSpec, data: TokenData, world: World, place: Place
) -> Validation:
    """Return the loss on the fixed validation set, at the recurrence of the spec.

    Each process takes a run of rows; all make the same number of passes, because sharded weights
    are gathered by all or none.
    """
    context, rows = run.model.context, validation_rows(run, data)
    size = max(1, _TOKENS_AT_ONCE[place.device.type] // context)
    share = math.ceil(rows / world.size)
    mine = np.arange(world.rank * share, min(rows, (world.rank + 1) * share))
    nats = text_bytes = 0.0
    with full_precision():
        for start in range(0, share, size):
            part = mine[start : start + size]
            filled = np.zeros(size, np.int64)  # row 0 fills up; its loss is left out
            filled[: len(part)] = part
            rows_BT = torch.from_numpy(data.validation.rows(filled, context)).to(place.device)
            loss_BT = replica.model(rows_BT[:, :-1], rows_BT[:, 1:], reduction="none")
            nats += loss_BT[: len(part)].double().sum().item()
            targets = rows_BT[: len(part), 1:].cpu().numpy()
            text_bytes += float(data.token_bytes[targets].sum())
    nats, text_bytes = world.sum([nats, text_bytes])
    tokens = rows * context
    return Validation(nats / tokens, nats / math.log(2) / text_bytes, tokens)
