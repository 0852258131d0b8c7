"""Kill launcher and workers of a real sweep at 50 random moments; compare with an undisturbed one.

    python benchmarks/sweep_kills.py [--kills 50] [--runs 6] [--seed 0]

The tables must be equal, byte for byte.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from loopworth.plan import Plan, iso_depth
from loopworth.spec import OptimSpec
from loopworth.sweep.folder import SweepFolder
from sweep_killer import kill_at_random


def make_plan(runs: int) -> Plan:
    model = {"head_dim": 8, "vocab_size": 320, "context": 64}
    run = {
        "batch_tokens": 512, "validation_tokens": 2**14,
        "optim": OptimSpec(matrix_lr=0.02, batch_exponent=0),
    }  # fmt: skip
    made = iso_depth({6e10: [16, 24, 32]}, depth=10, ends=(1, 1), model=model, run=run)
    return Plan("kills", made[:runs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        tables, seconds = [], []
        for name in ("undisturbed", "killed"):
            sweep = SweepFolder(Path(place) / name)
            sweep.grow(make_plan(options.runs))
            command = [
                sys.executable, "-m", "loopworth", "sweep", "start", "--out", str(sweep.path),
                "--workers", "2", "--device", "cpu", "--save-every", "20", "--attempts", "1000",
                "--quiet", "--json",
            ]  # fmt: skip
            start = time.monotonic()
            if name == "undisturbed":
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            else:
                quiet = ["sh", "-c", 'exec "$@" >/dev/null', "sh", *command]
                killed = kill_at_random(
                    sweep, quiet, options.kills, options.seed, 10.0, lambda line: print(line)
                )
            seconds.append(time.monotonic() - start)
            tables.append((sweep.path / "runs.csv").read_bytes())
    print(f"{killed['launcher']} launchers and {killed['worker']} workers were killed")
    print(f"{seconds[0]:.0f} s undisturbed, {seconds[1]:.0f} s with the kills")
    same = tables[0] == tables[1]
    print("the tables are equal, byte for byte" if same else "THE TABLES DIFFER")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
