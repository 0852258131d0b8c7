"""What every test shares: one plotting backend, reproducible property tests, the optional data."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["MPLBACKEND"] = "Agg"  # before anything imports matplotlib: no test opens a window

# The same examples on every machine, and no time limit: a slow machine is not a defect.
settings.register_profile(
    "loopworth", derandomize=True, deadline=None, database=None, max_examples=50
)
settings.load_profile("loopworth")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Data files that are not part of the project; tests that need them skip without."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the shared data files are not beside this checkout")
    return folder
