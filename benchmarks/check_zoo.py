"""Misses and false alarms of `loopworth check`: the zoo at fresh places, and clean tables.

The zoo of tests/ is built again at places that no threshold was chosen by. Prints Markdown.

    .venv/bin/python benchmarks/check_zoo.py --draws 5
"""

import argparse
import os
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np

from loopworth.check import check
from zoo import built, clean_tables, entries, thinned_tables

FRESH = 400  # the first draw, simulation and thinning that were not used to choose thresholds
OF_HOLES = {"missing_cells", "missing_control", "two_recurrences"}


def alarms(source):
    return {each.code for each in check(source).findings if each.severity != "note"}


def zoo(draws):
    print("| kind | corrupted tables | missed | other findings besides |\n|---|--:|--:|--:|")
    counts, missed = defaultdict(Counter), Counter()
    for draw in range(FRESH, FRESH + draws):
        for entry in entries():
            columns, rows = entry.make(draw)
            report = check(columns)
            hits = [each for each in report.findings if each.code in entry.codes]
            caught = bool(hits) and {row for each in hits for row in each.rows} == rows
            worse = {each.code for each in report.findings if each.severity != "note"}
            counts[entry.kind]["tables"] += 1
            counts[entry.kind]["missed"] += not caught
            counts[entry.kind]["besides"] += bool(worse - {*entry.codes, *entry.also})
            if not caught:
                missed[entry.name] += 1
    for kind, row in sorted(counts.items()):
        print(f"| {kind} | {row['tables']} | {row['missed']} | {row['besides']} |")
    total = sum(counts.values(), Counter())
    print(f"| all | {total['tables']} | {total['missed']} | {total['besides']} |\n")
    print(
        "Missed:", ", ".join(f"{name} ({n} of {draws})" for name, n in missed.most_common()), "\n"
    )


def clean(sweeps, thinned):
    print("| clean tables | tables | with an alarm |\n|---|--:|--:|")
    groups = defaultdict(Counter)
    for name, source in clean_tables(sweeps, seed=FRESH):
        kind = "built-in studies" if isinstance(source, str) else "rewritten built-in table"
        kind = (
            "simulated sweeps, seed noise and misfit as real"
            if name.startswith("simulated")
            else kind
        )
        groups[kind]["tables"] += 1
        groups[kind]["alarms"] += bool(alarms(source))
    for name, source in clean_tables(sweeps // 3, seed=FRESH + 1, misfits=(0.009,)):
        if name.startswith("simulated"):
            groups["simulated with 1.5 times the misfit of the real runs"]["tables"] += 1
            groups["simulated with 1.5 times the misfit of the real runs"]["alarms"] += bool(
                alarms(source)
            )
    for _, source in thinned_tables(thinned, seed=FRESH):
        groups["random parts of built-in studies"]["tables"] += 1
        groups["random parts of built-in studies"]["alarms"] += bool(alarms(source) - OF_HOLES)
    for kind, row in groups.items():
        print(f"| {kind} | {row['tables']} | {row['alarms']} |")
    print()


def sizes():
    print("| raised by (mnats) | 20 | 30 | 40 | 50 | 60 | 80 |\n|---|--:|--:|--:|--:|--:|--:|")
    shares = []
    for nats in (0.02, 0.03, 0.04, 0.05, 0.06, 0.08):
        caught = 0
        for place in range(116):
            columns = built()
            columns["val_loss"][place] += nats
            caught += any(
                place + 1 in each.rows and each.code == "under_tuned"
                for each in check(columns).findings
            )
        shares.append(f"{caught / 116:.0%}".replace("%", " %"))
    print(f"| found | {' | '.join(shares)} |\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--sweeps", type=int, default=324)
    parser.add_argument("--thinned", type=int, default=400)
    options = parser.parse_args()
    start = time.perf_counter()
    zoo(options.draws)
    clean(options.sweeps, options.thinned)
    sizes()
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        check("schwethelm2026")
        times.append(time.perf_counter() - begin)
    print(f"`check` of the built-in table, imported: {1e3 * np.median(times):.0f} ms.")
    print(f"All of the above: {time.perf_counter() - start:.0f} s.")


if __name__ == "__main__":
    main()
