"""Tables that stretch a page: losses without noise, losses that are nothing but noise."""

from pathlib import Path

import numpy as np

from loopworth.runs import load_runs


def write_table(folder: Path, kind: str, phi: float = 0.45) -> Path:
    """Write the built-in design with losses of the law, `exact`, or of a generator, `noise`."""
    columns = load_runs("schwethelm2026").to_columns()
    names = ("recurrence", "n_once", "n_rec", "tokens", "budget_flops")
    r, once, rec, tokens, _ = design = [np.array(columns[name]) for name in names]
    loss = 1.6 + 30 * (once + r**phi * rec) ** -0.2 + 900 * tokens**-0.37
    if kind == "noise":
        loss = np.random.default_rng(1).uniform(2.0, 3.0, len(loss))
    rows = zip(*design, loss, strict=True)
    lines = [",".join((*names, "val_loss")), *(",".join(map(repr, map(float, x))) for x in rows)]
    path = folder / f"{kind}{phi}.csv"
    path.write_text("\n".join(lines))
    return path
