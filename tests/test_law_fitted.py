"""A fitted law as a value: it pickles, and it refuses what no run can be."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from loopworth import fit, load_runs
from loopworth.law import GAINS, FittedLaw
from loopworth.law.gain import make_gain

TABLE = load_runs("schwethelm2026")
LAW = FittedLaw("power", (2.0, 4.0, 8.0), 28.0, 0.2, 911.0, 0.368, 1.57, (0.46,))


@pytest.mark.parametrize("key", GAINS)
def test_a_gain_survives_pickling(key: str) -> None:
    gain = make_gain(key, [1, 2, 4, 8])
    again = pickle.loads(pickle.dumps(gain))
    theta = np.array(gain.seeds)
    for one, two in zip(
        gain.evaluate(theta, np.array([1.0, 4.0])),
        again.evaluate(theta, np.array([1.0, 4.0])),
        strict=True,
    ):
        np.testing.assert_array_equal(one, two)


def test_a_fit_survives_pickling() -> None:
    found = fit(TABLE, bootstrap=40)
    assert found.law.g(16) > 1  # the law has made its gain by now
    again = pickle.loads(pickle.dumps(found))
    assert again.to_json() == found.to_json()
    assert again.law.predict(1e8, 1e8, 16, 1e10) == found.law.predict(1e8, 1e8, 16, 1e10)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ((-1e8, 2e8, 4, 1e9), "n_once is -1e\\+08, and must be 0 or more"),
        ((1e8, np.nan, 4, 1e9), "n_rec is nan"),
        ((0, 0, 4, 1e9), "n_once \\+ n_rec is 0"),
        ((1e8, 1e8, 0.5, 1e9), "recurrence is 0.5, and must be 1 or more"),
        ((1e8, 1e8, np.inf, 1e9), "recurrence is inf"),
        ((1e8, 1e8, 4, [1e9, 0.0]), "tokens is 0, and must be above 0"),
        ((1e8, 1e8, 4, -1e9), "tokens is -1e\\+09"),
    ],
)
def test_nonsense_is_refused_by_name(place: tuple[float, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LAW.predict(*place)


def test_what_the_law_knows() -> None:
    assert LAW.knows(16)
    free = FittedLaw("free", (2.0, 4.0), 28.0, 0.2, 911.0, 0.368, 1.57, (1.3, 1.8))
    assert [free.knows(r) for r in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(("truth", "edge"), [(4.0, 3.0), (-5.0, -3.0)])
@pytest.mark.parametrize("tokens", [None, 1e9])
def test_phi_on_the_edge_of_its_box_is_said(
    truth: float, edge: float, tokens: float | None
) -> None:
    """With many token counts and with one alone."""
    law = replace(LAW, gain_parameters=(truth,))
    tokens_of = TABLE.tokens if tokens is None else np.full(len(TABLE), tokens)
    loss = law.predict(TABLE.n_once, TABLE.n_rec, TABLE.recurrence, tokens_of)
    noise = 1 + 1e-3 * np.random.default_rng(0).standard_normal(len(TABLE))
    names = ("n_once", "n_rec", "recurrence")
    columns = {name: getattr(TABLE, name) for name in names}
    found = fit(columns | {"tokens": tokens_of, "val_loss": loss * noise}, bootstrap=0)
    assert found.phi is not None
    assert found.phi.estimate == pytest.approx(edge, abs=1e-5)
    (finding,) = [x for x in found.findings if x.code == "on_the_box"]
    assert f"phi = {edge:g}" in finding.message


def test_a_gross_outlier_that_did_not_diverge_is_named() -> None:
    loss = TABLE.val_loss.copy()
    loss[[20, 77]] += 0.25
    names = ("n_once", "n_rec", "recurrence", "tokens", "budget_flops")
    columns = {name: getattr(TABLE, name) for name in names} | {"val_loss": loss}
    found = fit(columns, bootstrap=0)
    assert len(found.runs) == len(TABLE)
    (finding,) = [x for x in found.findings if x.code == "outlying_runs"]
    assert finding.rows == (21, 78)
