"""From a sweep to phi: simulated sweeps whose law is known, and a real one by the command."""

import html.parser
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from loopworth.cli import main
from loopworth.ledger import ledger
from loopworth.measure import PhiTrack, measured
from loopworth.plan import Plan
from loopworth.reach import reach
from loopworth.recipes import load_plan
from loopworth.recipes.probes import probe
from loopworth.report.live import live_page
from loopworth.report.measure_text import measure_page, next_steps
from loopworth.spec import RunSpec
from loopworth.sweep.files import write_json
from loopworth.sweep.folder import SweepFolder
from loopworth.sweep.run import RESULT
from loopworth.sweep.status import read_status
from loopworth.train.result import run_row
from test_sweep_command import text_of
from train_runs import make_data

PHI = {"baseline": 0.5, "hyperconnections": 0.8}
NOISE = 0.002


def law(run: RunSpec, phi: float) -> float:
    """Return the loss of a run under a law whose phi is known."""
    count = ledger(run.model).count()
    size = count.n_once + run.model.recurrence**phi * count.n_rec
    return 1.2 + 14.0 * size**-0.3 + 40.0 * reach(run).tokens ** -0.3


def finish(sweep: SweepFolder, *, most: int | None = None, seed: int = 0) -> None:
    """Write results as training would, their losses from the law and some noise."""
    noise = np.random.default_rng(seed).normal(0.0, NOISE, len(sweep.cells))
    for cell, error in list(zip(sweep.cells, noise, strict=True))[:most]:
        run = RunSpec.from_json(json.dumps(cell.spec))
        loss = law(run, PHI[cell.study]) + float(error)
        row = run_row(run, reach(run), val_loss=loss, val_bits_per_byte=loss, seconds=1.0)
        write_json(sweep.prepare(cell) / RESULT, row)


@pytest.fixture
def sweep(tmp_path):
    found = SweepFolder(tmp_path / "sweep")
    found.grow(load_plan("laptop"))
    return found


def test_the_phi_of_a_simulated_sweep_is_found(sweep):
    finish(sweep)
    found = measured(sweep, bootstrap=200)
    assert found.refused == ""
    assert found.fit is not None
    low, high = found.fit.phi.ci95
    assert low < PHI["baseline"] < high
    assert high - low < 0.2
    assert len(found.fit.runs) == 48
    # Noise of 0.002 nats at losses near 2.5 is 0.0008 of the log; below 0.001 the paper's stays.
    assert found.huber_delta == 0.001
    shown = text_of(measure_page(found))
    assert "not that of large models" in shown
    assert not re.search(r"^L = ", shown, re.MULTILINE)  # constants are not shown
    assert f"loopworth fit {sweep.path / 'tables' / 'baseline.csv'}" in next_steps(found)
    json.dumps(found.to_json(), allow_nan=False)


def test_a_probe_is_compared_with_the_base_and_shares_its_runs_without_a_loop(sweep):
    base = load_plan("laptop")
    sweep.grow(Plan("both", [*base.runs, *probe(base, "hyperconnections").runs]))
    assert len(sweep.cells) == 48 + 36
    finish(sweep)
    found = measured(sweep, bootstrap=200)
    (method,) = found.comparison.methods
    assert method.name == "hyperconnections"
    assert len(method.runs) == 48
    low, high = method.delta_phi.ci95
    assert low < PHI["hyperconnections"] - PHI["baseline"] < high
    assert low > 0


def test_phi_is_followed_while_runs_end_and_its_interval_narrows(sweep):
    now = [0.0]
    track = PhiTrack(sweep.path, clock=lambda: now[0])
    for most in (4, 20, 21, 32, 48):
        finish(sweep, most=most)
        track.update(read_status(sweep))
        now[0] += 60 if most != 20 else 0  # one more run at once is not worth a fit
    assert [point.runs for point in track.points] == [20, 32, 48]
    widths = [point.ci95[1] - point.ci95[0] for point in track.points]
    assert widths == sorted(widths, reverse=True)
    assert track.update(read_status(sweep)) is None  # nothing new
    assert PhiTrack(sweep.path).points == track.points  # a launcher that goes on has them
    (sweep.path / "phi.jsonl").write_text("[")
    assert PhiTrack(sweep.path).points == []


class Tags(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_live_page_stands_alone_and_stops_refreshing(sweep):
    finish(sweep, most=20)
    track = PhiTrack(sweep.path)
    track.update(read_status(sweep))
    finish(sweep, most=40)
    track = PhiTrack(sweep.path)
    track.update(read_status(sweep))
    page = live_page(read_status(sweep), track.points)
    parser = Tags()
    parser.feed(page)
    assert parser.open == []
    assert "http-equiv" in page
    assert not re.search(r"(src|href)=", page)  # nothing from elsewhere
    assert sum(attrs.get("class") == "complete" for _, attrs in parser.seen) == 40
    assert sum(tag == "circle" for tag, _ in parser.seen) == len(track.points) == 2
    assert "http-equiv" not in live_page(read_status(sweep), track.points, ended=True)


def test_missing_runs_are_named_and_too_few_are_refused(sweep):
    finish(sweep, most=45)
    found = measured(sweep, bootstrap=0)
    assert found.fit is not None
    assert "45 of 48 runs" in next_steps(found)
    assert found.collected.missing[0].cell.name in next_steps(found)
    for cell in sweep.cells[3:]:
        (sweep.run_path(cell) / RESULT).unlink(missing_ok=True)
    found = measured(sweep, bootstrap=0)
    assert found.fit is None
    assert "3 runs" in found.refused
    assert "refused:" in text_of(measure_page(found))


RECIPE = """
from loopworth.plan import iso_depth
from loopworth.spec import OptimSpec

def recipe(data):
    return iso_depth(
        {1e9: [8, 16], 2e9: [8, 16]}, depth=4, ends=(1, 1), recurrences=(1, 2),
        model={"head_dim": 8, "vocab_size": 320, "context": 32},
        run={"data": data, "batch_tokens": 256, "validation_tokens": 1024,
             "optim": OptimSpec(matrix_lr=0.02, batch_exponent=0)},
    )
"""


def test_the_command_trains_measures_and_does_nothing_twice(tmp_path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(RECIPE)
    data = make_data(tmp_path)
    words = ["measure", str(recipe), "--data", str(data), "--out", str(tmp_path / "out")]
    words += ["--device", "cpu", "--bootstrap", "0"]
    first = CliRunner().invoke(main, words, standalone_mode=False)
    assert "8 of 8 runs in " in first.stdout
    assert "loopworth fit " in first.stdout
    assert "8/8 " in first.stderr
    results = {p: p.stat().st_mtime_ns for p in tmp_path.glob("out/runs/*/result.json")}
    assert len(results) == 8
    again = CliRunner().invoke(main, [*words, "--json"], standalone_mode=False)
    found = json.loads(again.stdout)
    assert found["collected"]["n_runs"] == 8
    assert found["fit"]["phi"] is not None
    assert results == {p: p.stat().st_mtime_ns for p in results}


def test_a_size_is_one_of_the_recipe_laptop():
    ended = CliRunner().invoke(main, ["measure", "paper", "--preview"])
    assert ended.exit_code == 2
    assert "--preview is a size of the recipe laptop, not of paper" in ended.output
