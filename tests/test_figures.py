"""The figures: what they plot equals the table, in one style, and the same bytes every time."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from loopworth import fit, load_runs
from loopworth.law import Estimate
from loopworth.report.figures import make_figures, write_figures
from loopworth.report.figures.bootstrap import draw_bootstrap
from loopworth.report.figures.runs import hollow_runs
from loopworth.report.fit_report import FitReport
from loopworth.report.style import house_style, marks, power_of_ten, render, spread, wrap

WIDTHS = (0.4, 0.7, 1.0, 1.5, 2.5)


def grid(levels, budgets, widths=WIDTHS, noise=2e-3, phi=0.45):
    """A table in direct form whose valleys turn inside the widths."""
    r, budget, width = (
        x.ravel() for x in np.meshgrid(np.asarray(levels, float), budgets, widths, indexing="ij")
    )
    n = np.sqrt(budget / 1e18) * width * 1e8 * r**-0.35
    tokens = budget / (6 * n * (0.3 + 0.7 * r))
    loss = 1.6 + 30 * (n * (0.3 + 0.7 * r**phi)) ** -0.2 + 900 * tokens**-0.37
    loss *= np.exp(noise * np.random.default_rng(3).standard_normal(len(loss)))
    return {
        "n_once": 0.3 * n, "n_rec": 0.7 * n, "recurrence": r, "tokens": tokens,
        "budget_flops": budget, "val_loss": loss,
    }  # fmt: skip


def report_of(source, law="power", bootstrap=0):
    return FitReport.of(fit(source, law, bootstrap=bootstrap, seed=1))


@pytest.fixture(scope="module")
def report():
    return report_of("schwethelm2026", bootstrap=60)


@pytest.fixture(scope="module")
def figures(report):
    return make_figures(report)


@pytest.fixture(scope="module")
def folder(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("figures")
    return path, write_figures(report, path)


def drawn(axes, *names):
    """The artists of an axes with one of these names."""
    return [x for x in axes.get_children() if x.get_gid() in names]


def points(axes):
    """The plotted runs of an axes as sorted (x, y)."""
    data = [line.get_xydata() for line in drawn(axes, "runs", "inferred")]
    return np.array(sorted(map(tuple, np.concatenate(data))))


def title(figure):
    return " ".join(figure.texts[0].get_text().split())


class TestFiles:
    def test_each_figure_is_a_pdf_and_an_svg(self, folder):
        path, files = folder
        names = [f"{name}.{kind}" for name in ("isoflop", "residuals", "bootstrap")
                 for kind in ("pdf", "svg")]  # fmt: skip
        assert [file.name for file in files] == names
        assert sorted(path.iterdir()) == sorted(files)
        for file in files:
            data = file.read_bytes()
            if file.suffix == ".pdf":
                assert data.startswith(b"%PDF-")
                assert data.rstrip().endswith(b"%%EOF")
                assert b"/FontFile2" in data  # TrueType, embedded: text stays text
                assert b"/Type3" not in data
                assert b"CreationDate" not in data
            else:
                assert ET.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"
                assert b"<dc:date>" not in data
                assert len(data) < 300_000

    def test_nothing_is_written_over(self, report, tmp_path):
        (tmp_path / "isoflop.pdf").write_text("mine")
        with pytest.raises(FileExistsError):
            write_figures(report, tmp_path)
        assert (tmp_path / "isoflop.pdf").read_text() == "mine"

    def test_pyplot_is_untouched_and_matplotlib_waits(self, tmp_path):
        code = f"""
import sys, pathlib
import loopworth.report.folder
from loopworth import fit
from loopworth.report.figures import write_figures
from loopworth.report.fit_report import FitReport
report = FitReport.of(fit("schwethelm2026", bootstrap=0))
assert "matplotlib" not in sys.modules
write_figures(report, pathlib.Path({str(tmp_path)!r}))
assert "matplotlib" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
"""
        subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)

    def test_two_runs_give_the_same_bytes_whatever_the_user_has_set(self, report, folder, tmp_path):
        with mpl.rc_context({"font.size": 30, "lines.linewidth": 9, "axes.facecolor": "red"}):
            before = dict(mpl.rcParams)
            files = write_figures(report, tmp_path)
            assert dict(mpl.rcParams) == before
        for one, two in zip(folder[1], files, strict=True):
            assert one.read_bytes() == two.read_bytes(), one.name


class TestIsoflop:
    def test_a_panel_for_each_recurrence_on_shared_axes(self, report, figures):
        axes = figures["isoflop"].axes
        names = [[x.get_text() for x in a.texts if x.get_text().startswith("r = ")] for a in axes]
        assert names == [["r = 1"], ["r = 2"], ["r = 4"], ["r = 8"]]
        assert len({a.get_xlim() for a in axes}) == len({a.get_ylim() for a in axes}) == 1

    def test_points_are_the_table(self, report, figures):
        runs = report.fit.runs
        unique = runs.n_once + runs.n_rec
        for r, axes in zip((1, 2, 4, 8), figures["isoflop"].axes, strict=True):
            chosen = runs.recurrence == r
            expected = sorted(zip(unique[chosen], runs.val_loss[chosen], strict=True))
            assert points(axes) == pytest.approx(np.array(expected), rel=1e-12)

    def test_inferred_losses_are_hollow(self, report, figures):
        hollow = 0
        for axes in figures["isoflop"].axes:
            for line in drawn(axes, "inferred"):
                assert line.get_markerfacecolor() == "white"
                hollow += len(line.get_xdata())
        assert hollow == hollow_runs(report.fit.runs).sum() > 0

    def test_curves_are_the_parabolas_and_stars_their_minima(self, report, figures):
        for r, axes in zip((1, 2, 4, 8), figures["isoflop"].axes, strict=True):
            group = [x for x in report.minima if x.recurrence == r]
            (curve,) = drawn(axes, "parabola")
            ends = curve.get_path().vertices.reshape(-1, 4, 2)
            assert len(ends) == len(group)
            for x, bezier in zip(group, ends, strict=True):
                assert bezier[[0, 3], 0] == pytest.approx(x.n_measured)
                # The middle of a Bezier curve: (1, 3, 3, 1) / 8, in ln N and in loss.
                middle = (
                    np.array([1, 3, 3, 1])
                    / 8
                    @ np.column_stack([np.log(bezier[:, 0]), bezier[:, 1]])
                )
                assert middle[1] == pytest.approx(x.loss_at(np.exp(middle[0])), abs=1e-9)
            (stars,) = drawn(axes, "minimum")
            assert stars.get_xydata() == pytest.approx(
                np.array([(x.n_star, x.loss_star) for x in group])
            )
            assert not drawn(axes, "no minimum")

    def test_a_minimum_outside_is_open(self):
        report = report_of("schwethelm2026:truncated_bptt")
        figures = make_figures(report)
        assert list(figures) == ["isoflop", "residuals"]  # there are no draws
        axes = figures["isoflop"].axes[3]
        (star,) = drawn(axes, "no minimum")
        assert star.get_markerfacecolor() == "white"
        (edge,) = [x for x in report.minima if x.status == "edge"]
        runs = report.fit.runs
        assert star.get_ydata() == pytest.approx(runs.val_loss[np.isin(runs.rows, edge.rows)].min())

    def test_the_law_is_drawn_where_it_is(self, report, figures):
        predicted = report.fit.runs.val_loss - report.fit.residual
        for axes in figures["isoflop"].axes:
            (law,) = drawn(axes, "law")
            ends = law.get_path().vertices.reshape(-1, 4, 2)
            assert len(ends) == 6
            for loss in ends[:, [0, 3], 1].ravel():
                assert np.abs(predicted - loss).min() < 5e-4

    def test_every_point_and_label_lies_inside(self, figures):
        figure = figures["isoflop"]
        page = figure.bbox
        with house_style():
            figure.draw_without_rendering()
        for axes in figure.axes:
            for text in (*axes.texts, axes.xaxis.label, axes.yaxis.label):
                box = text.get_window_extent()
                assert page.x0 <= box.x0 <= box.x1 <= page.x1
            ends = [text.get_window_extent().x1 for text in drawn(axes, "budget")]
            assert len(ends) == 6
            assert max(ends) < axes.bbox.x1 + 3

    def test_title_says_the_gap(self, report, figures):
        gaps = [1e3 * x.nats for x in report.gaps if x.recurrence == 8]
        assert f"loses {min(gaps):.0f} to {max(gaps):.0f} mnats to r = 1" in title(
            figures["isoflop"]
        )


class TestResiduals:
    def test_points_are_the_table(self, report, figures):
        runs = report.fit.runs
        unique = runs.n_once + runs.n_rec
        values = (runs.budgets, unique, runs.tokens / unique, runs.recurrence)
        for x, axes in zip(values, figures["residuals"].axes, strict=True):
            expected = np.array(sorted(zip(x, 1e3 * report.fit.residual, strict=True)))
            assert points(axes) == pytest.approx(expected, rel=1e-12)
            low, high = axes.get_xlim()
            assert low < x.min() <= x.max() < high
            assert axes.get_ylim() == figures["residuals"].axes[0].get_ylim()

    def test_sign_is_observed_minus_predicted(self, report, figures):
        label = figures["residuals"].axes[0].get_ylabel()
        assert label == "observed − predicted, mnats"
        worst = max(report.fit.residuals, key=lambda row: abs(row.mean))
        side = "above" if worst.mean > 0 else "below"
        assert f"r = {worst.recurrence:g} lie {1e3 * abs(worst.mean):.1f} mnats {side} it" in title(
            figures["residuals"]
        )


class TestBootstrap:
    def test_draws_profile_and_named_values(self, report, figures):
        top, bottom = figures["bootstrap"].axes
        boot, phi = report.fit.bootstrap, report.fit.phi
        shown = sum(bar.get_height() for bar in top.patches)
        assert len(boot.theta) * 0.98 <= shown <= len(boot.theta)
        assert [line.get_xdata()[0] for line in drawn(top, "named")] == [0.0, 1.0]
        (line,) = drawn(top, "estimate")
        assert line.get_xdata()[0] == phi.estimate
        (solved,) = drawn(bottom, "solved")
        curve = dict(zip(report.fit.profile.values, report.fit.profile.deviance, strict=True))
        assert all(curve[x] == y for x, y in solved.get_xydata())
        words = " ".join(text.get_text() for axes in (top, bottom) for text in axes.texts)
        for low, high in (phi.ci95, phi.profile95):
            assert f"[{low:.2f}, {high:.2f}]" in words
        for word in ("φ = 0\n", "φ = 1\n", "a repeat adds nothing", "a repeat equals a new block"):
            assert word in words

    def test_dark_bars_are_the_interval(self, report, figures):
        low, high = report.fit.phi.ci95
        bars = figures["bootstrap"].axes[0].patches
        dark = [b for b in bars if to_hex(b.get_facecolor()) == "#2c6e8f"]
        assert dark[0].get_x() == pytest.approx(low)
        assert dark[-1].get_x() + dark[-1].get_width() == pytest.approx(high)

    @pytest.mark.parametrize(
        ("ci", "profile", "verdict"),
        [
            ((0.39, 0.49), (0.40, 0.47), "worth less than half of a new block"),
            ((0.39, 0.49), (0.40, 0.61), "worth a part of a new block"),
            ((0.50, 0.77), (0.51, 0.76), "worth a part of a new block"),
            ((0.39, 0.49), (-0.1, 0.5), "do not show that a repeat adds anything"),
            ((0.39, 1.1), (0.4, 0.9), "may be worth as much as a new block"),
            ((0.39, 0.9), (0.4, None), "may be worth as much as a new block"),
            ((-0.1, 1.1), (0.1, 0.9), "cannot tell a useless repeat from a new block"),
            ((1.1, 1.2), (1.05, 1.3), "worth more than a new block"),
            ((-0.5, -0.3), (-0.6, -0.2), "repeating the block hurts"),
        ],
    )
    def test_the_title_claims_what_both_intervals_carry(self, report, ci, profile, verdict):
        phi = Estimate(sum(ci) / 2, ci, profile)
        changed = replace(report, fit=replace(report.fit, phi=phi, gain={"phi": phi}))
        assert verdict in title(draw_bootstrap(changed))

    @pytest.mark.parametrize(("law", "panels"), [("free", 3), ("bounded", 2)])
    def test_several_constants_are_small_multiples(self, law, panels):
        report = report_of("schwethelm2026", law, bootstrap=60)
        axes = draw_bootstrap(report).axes
        assert len(axes) == panels == len(report.fit.gain)
        for name, each in zip(report.fit.gain, axes, strict=True):
            assert each.get_xlabel().startswith(f"{name} = ")

    def test_one_constant_of_another_law_is_shown(self):
        figure = draw_bootstrap(report_of("schwethelm2026", "affine", bootstrap=50))
        assert len(figure.axes) == 2
        assert title(figure).startswith("k = ")

    def test_a_law_without_constants_has_none(self):
        assert draw_bootstrap(report_of(grid([1, 2], [1e18, 1e19]), "unrolled", 5)) is None


class TestStyle:
    def test_a_recurrence_looks_the_same_everywhere(self, report, figures):
        style = marks([1, 2, 4, 8])
        seen = {}
        for axes, r in zip(figures["isoflop"].axes, (1, 2, 4, 8), strict=True):
            for line in drawn(axes, "runs", "inferred"):
                seen.setdefault(r, set()).add((line.get_markeredgecolor(), line.get_marker()))
        for line in drawn(figures["residuals"].axes[3], "runs", "inferred"):
            r = int(line.get_xdata()[0])
            seen[r].add((line.get_markeredgecolor(), line.get_marker()))
        assert seen == {r: {(style[r].colour, style[r].marker)} for r in (1, 2, 4, 8)}

    def test_other_levels_do_not_change_it(self):
        assert marks([1, 2, 4, 8])[4] == marks([1, 1.5, 4, 6])[4]

    def test_grey_keeps_the_order(self):
        levels = [1, 1.5, 2, 3, 4, 6, 8, 12, 32]
        grey = [
            np.dot(to_rgb(mark.colour), (0.299, 0.587, 0.114)) for mark in marks(levels).values()
        ]
        assert np.all(np.diff(grey) > 0.01)
        assert grey[-1] < 0.72  # dark enough for white paper
        assert len({mark.marker for mark in marks(levels).values()}) == len(levels)

    def test_axes_are_left_and_bottom(self, figures):
        for figure in figures.values():
            for axes in figure.axes:
                shown = [side for side, spine in axes.spines.items() if spine.get_visible()]
                assert shown == ["left", "bottom"]
                assert axes.get_legend() is None

    def test_labels_move_apart_within_the_axes(self):
        wanted = [0.1, 0.0, 0.05, 9.9, 9.95]
        placed = np.array(spread(wanted, 1.0, 0.0, 10.0))
        assert np.diff(np.sort(placed)).min() == pytest.approx(1.0)
        assert placed.min() == pytest.approx(0.0)
        assert placed.max() == pytest.approx(10.0)
        assert placed.argsort().tolist() == [1, 2, 0, 3, 4]

    def test_words(self):
        assert power_of_ten(4.64e17) == "4.64×10¹⁷"
        assert wrap("one two three", 0.01, 9) == ["one", "two", "three"]
        assert wrap("one two three", 9.0, 9) == ["one two three"]


def without(table, name):
    return {key: value for key, value in table.items() if key != name}


ODD = {
    "one recurrence": (grid([4], [1e18, 3e18]), "power", 5),
    "no budgets": (without(grid([1, 3], [1e18, 1e19]), "budget_flops"), "power", 10),
    "two widths, one budget": (grid([1, 1.5, 2, 4], [1e18], (0.5, 2.0)), "power", 0),
    "no noise": (grid([1, 2, 4], [1e18, 3e18], noise=0.0), "power", 60),
    "one run a recurrence": (grid([1, 2, 3, 4, 6, 8], [1e18], (1.0,)), "none", 0),
    "fractions": (grid([1, 1.5, 3.7], [1e18, 1e19]), "power", 10),
    "two studies": (grid([1, 2], [1e18, 1e19]) | {"study": ["one", "two"] * 10}, "power", 0),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tables_are_drawn(name):
    report = report_of(*ODD[name])
    figures = make_figures(report)
    runs = report.fit.runs
    assert len(figures["isoflop"].axes) == len(set(runs.recurrence.tolist()))
    assert sum(len(points(axes)) for axes in figures["isoflop"].axes) == len(runs)
    assert all(len(points(axes)) == len(runs) for axes in figures["residuals"].axes)
    for figure in figures.values():
        assert title(figure)
        with house_style():
            assert ET.fromstring(render(figure, "svg", name)) is not None


def test_many_runs_stay_small():
    levels = [1, 1.5, 2, 2.5, 3, 4, 5.5, 6, 8]
    table = load_runs(grid(levels, 10 ** np.arange(17, 23, 0.5)))
    assert len(table) == 540
    report = report_of(table)
    assert len(report.minima) == 108
    for name, figure in make_figures(report).items():
        with house_style():
            assert len(render(figure, "svg", name)) < 300_000, name
