"""One rule for intervals: `fit` and `compare` follow the valley of the estimate, and say so."""

from __future__ import annotations

import numpy as np
import pytest

from loopworth import fit, load_runs
from loopworth.compare import compare
from loopworth.law.intervals import Bootstrap, resample_cells
from loopworth.law.joint import GAIN
from loopworth.law.rivals import make_problem
from loopworth.law.solve import optimise
from loopworth.law.valley import (
    elsewhere,
    nearby_bootstrap,
    resample_findings,
    valley_bootstrap,
    valley_findings,
)

TRUNCATED = load_runs("schwethelm2026:truncated_bptt")
PROBLEM = make_problem(TRUNCATED)
THETA = optimise(PROBLEM).theta


@pytest.fixture(scope="module")
def both() -> tuple[Bootstrap, Bootstrap]:
    return valley_bootstrap(PROBLEM, THETA, resample_cells(TRUNCATED.cells, 150, seed=0))


def test_some_resamples_have_a_lower_point_in_another_valley(
    both: tuple[Bootstrap, Bootstrap],
) -> None:
    near, lowest = both
    away = elsewhere(near, lowest)
    assert 0 < away.mean() < 0.08
    assert (lowest.objective[away] < near.objective[away]).all()
    assert (lowest.theta[away, GAIN] < -1.5).all()
    assert near.theta[:, GAIN].min() > -1
    np.testing.assert_array_equal(near.theta[~away], lowest.theta[~away])


def test_near_points_are_optima_of_their_resamples(both: tuple[Bootstrap, Bootstrap]) -> None:
    near, _ = both
    steps = 1e-4 * np.eye(len(THETA))
    for step in (*steps, *-steps):
        moved = PROBLEM.objective(near.theta + step, near.weights)
        assert (moved >= near.objective * (1 - 1e-9)).all()


def test_fit_follows_the_valley_and_says_what_else_there_is() -> None:
    found = fit(TRUNCATED, bootstrap=150)
    assert found.bootstrap is not None
    assert found.phi is not None
    (finding,) = [x for x in found.findings if x.code == "another_valley"]
    assert found.phi.ci95 == found.bootstrap.interval(
        found.bootstrap.theta[:, GAIN], found.phi.estimate
    )
    assert found.bootstrap.theta[:, GAIN].min() > -1
    low, high = finding.evidence["phi"]["ci95"]
    assert low < found.phi.ci95[0]
    assert high <= found.phi.ci95[1] + 1e-9
    assert f"{100 * finding.evidence['share']:.1f}%" in finding.message
    assert "the interval of phi is" in finding.message


def test_fit_and_compare_give_one_interval_for_one_table() -> None:
    """Compared with itself a table has the cells, the resamples and the draws of its own fit."""
    alone = fit(TRUNCATED, bootstrap=60)
    (method,) = compare(TRUNCATED, TRUNCATED, bootstrap=60).methods
    assert alone.phi is not None
    assert method.phi is not None
    assert method.phi.ci95 == pytest.approx(alone.phi.ci95, abs=1e-9)


def test_a_table_with_one_valley_has_no_such_warning() -> None:
    found = fit("schwethelm2026", bootstrap=50)
    assert "another_valley" not in {x.code for x in found.findings}


def test_few_resamples_elsewhere_are_not_worth_a_word() -> None:
    away = np.arange(200) < 2
    assert not list(valley_findings(away, "resamples", "", {}, ""))
    assert not list(valley_findings(away[:0], "resamples", "", {}, ""))
    away = np.arange(200) < 3
    (finding,) = valley_findings(away, "resamples", "all is lost", {"phi": 1}, "Leave.")
    assert finding.evidence == {"share": 0.015, "phi": 1}
    assert "1.5% of the resamples" in finding.message


def test_a_start_keeps_its_valley(both: tuple[Bootstrap, Bootstrap]) -> None:
    near, lowest = both
    away = elsewhere(near, lowest)
    for draws in (near, lowest):
        found = nearby_bootstrap(PROBLEM, near.weights[away], draws.theta[away])
        np.testing.assert_allclose(found.theta[:, GAIN], draws.theta[away, GAIN], atol=1e-4)


# Doubts about resamples


def boot_of(resamples: int, lost: int = 0) -> Bootstrap:
    converged = np.arange(resamples) >= lost
    return Bootstrap(np.zeros((resamples, 1)), converged * 0.0, converged, converged[:, None], 1.0)


@pytest.mark.parametrize(
    ("resamples", "lost", "cells", "codes"),
    [
        (1000, 0, 24, []),
        (1000, 9, 24, []),
        (1000, 20, 24, ["bootstrap_not_converged"]),
        (1000, 0, 7, ["few_cells"]),
        (2, 0, 24, ["few_resamples"]),
        (2, 0, 4, ["few_resamples"]),  # no interval that could be too narrow
        (39, 0, 24, ["few_resamples"]),
        (40, 0, 24, []),
    ],
)
def test_doubts(resamples: int, lost: int, cells: int, codes: list[str]) -> None:
    found = list(resample_findings([("", boot_of(resamples, lost))], cells))
    assert [x.code for x in found] == codes
    assert not list(resample_findings([("", None)], cells))


def test_doubts_name_the_table_where_there_are_several() -> None:
    (finding,) = resample_findings([("a", boot_of(100)), ("b", boot_of(100, 5))], 24)
    assert "of b did not" in finding.message
    assert "profile interval beside it" in finding.remedy


@pytest.mark.parametrize("resamples", [1, 2, 39])
def test_too_few_resamples_claim_no_interval(resamples: int) -> None:
    found = fit("schwethelm2026", bootstrap=resamples)
    assert found.phi is not None
    assert found.phi.ci95 is None
    assert "few_resamples" in {x.code for x in found.findings}
    (method,) = compare(
        "schwethelm2026", "schwethelm2026:hyperconnections", bootstrap=resamples
    ).methods
    assert method.delta_phi is not None
    assert (method.delta_phi.ci95, method.delta_phi.p_positive) == (None, None)
