"""The folder of a sweep: which runs it is made of, and where each of them lies.

    plan.json          the runs: name, study, role, spec, and how far each goes; it only grows
    runs/NAME/         one run each, made when it is first started (see `run.py`)
    launcher           the claim of the process that starts runs
    stop               a wish: whoever works here saves and stops
    workers/           what local workers wrote to stderr
    runs.csv           the run table, written by `collect`

The folder is the only truth: nothing else is needed to list a sweep, go on with it or collect it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from loopworth.plan import Plan, PlannedRun
from loopworth.spec import RunSpec
from loopworth.sweep.claim import Claim, HeldError, living_owner
from loopworth.sweep.files import read_object, refusal, write_json, write_whole

PLAN, RUNS, LAUNCHER, STOP, TABLE = "plan.json", "runs", "launcher", "stop", "runs.csv"
LOGS = "workers"
SPEC = "spec.json"
_FORMAT = "loopworth sweep"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a sweep, as plan.json has it.

    spec   the fields of its RunSpec        hash   its content hash
    steps, tokens, flops   how far it goes
    """

    name: str
    study: str
    role: str
    hash: str
    steps: int
    tokens: int
    flops: float
    spec: Mapping[str, Any]

    @property
    def budget(self) -> float:
        """The nominal budget in FLOPs; what it costs where none was given."""
        given = self.spec.get("budget_flops")
        return self.flops if given is None else float(given)

    @property
    def width(self) -> int:
        """The model's width."""
        return int(self.spec["model"]["d_model"])

    @property
    def recurrence(self) -> float:
        """How often the block is run."""
        return float(self.spec["model"]["recurrence"])

    @property
    def seed(self) -> int:
        """The seed of weights and draws."""
        return int(self.spec["seed"])

    @property
    def run_id(self) -> str:
        """What the result of this run calls itself."""
        return self.hash[:16]

    @classmethod
    def of(cls, planned: PlannedRun, spec_hash: str) -> Self:
        """Return the cell of a planned run with this content hash."""
        there = planned.horizon
        return cls(
            name=planned.named(spec_hash),
            study=planned.study,
            role=planned.role,
            hash=spec_hash,
            steps=there.steps,
            tokens=there.tokens,
            flops=there.flops,
            spec=planned.run.to_json(),
        )


class OtherRunError(ValueError):
    """The folder of a run holds another run."""


@dataclass(frozen=True, slots=True)
class Grown:
    """What a plan brought to a sweep: runs that are new, and runs that were there already."""

    added: int
    reused: int


class SweepFolder:
    """A sweep on disk.

    >>> import tempfile
    >>> from loopworth.recipes import load_plan
    >>> sweep = SweepFolder(Path(tempfile.mkdtemp()) / "paper")
    >>> sweep.grow(load_plan("paper"))
    Grown(added=116, reused=0)
    >>> SweepFolder(sweep.path).cells[0].name == load_plan("paper").runs[0].name
    True
    """

    def __init__(self, path: Path | str) -> None:
        """Open a folder, whether or not there is a sweep in it yet.

        Raises ValueError where plan.json is damaged.
        """
        self.path = Path(path)
        self.name, self.purpose = self.path.name, ""
        self.cells: tuple[Cell, ...] = ()
        self.read()

    def read(self) -> None:
        """Read plan.json again."""
        place = self.path / PLAN
        try:
            found = read_object(place)
            if found is None:
                return
            if found.get("format") != _FORMAT:
                raise ValueError(f"{place} is no plan of a sweep")
            self.name, self.purpose = str(found["name"]), str(found["purpose"])
            self.cells = tuple(Cell(**cell) for cell in found["runs"])
        except (KeyError, TypeError, ValueError) as problem:
            known = isinstance(problem, ValueError)
            what = problem if known else f"{place} is damaged: it lacks {problem}"
            raise ValueError(
                f"{what}. The runs are whole: move the file away and start the same recipe with "
                "the same folder again"
            ) from None

    @property
    def exists(self) -> bool:
        """Whether there is a sweep."""
        return bool(self.cells)

    def require(self) -> Self:
        """Return the sweep; raises ValueError where there is none."""
        if not self.exists:
            raise ValueError(
                f"{self.path} holds no sweep (no {PLAN}); name the folder of one, or make it with "
                "`loopworth sweep start RECIPE --out DIR`"
            )
        return self

    def run_path(self, cell: Cell) -> Path:
        """Return the folder of a run."""
        return self.path / RUNS / cell.name

    def grow(self, plan: Plan, *, foreign: bool = False) -> Grown:
        """Add the runs of a plan that are not here yet; what is here stays as it is.

        foreign   also take a plan that shares no run with this sweep

        Two runs are the same where their content hashes are. Raises ValueError where the folder is
        something else's, or cannot be written.
        """
        here = {cell.hash for cell in self.cells}
        hashed = ((planned, planned.run.content_hash()) for planned in plan.runs)
        new = [Cell.of(planned, key) for planned, key in hashed if key not in here]
        reused = len(plan.runs) - len(new)
        if self.exists and not reused and not foreign:
            raise ValueError(
                f"{self.path} holds the sweep {self.name} with {len(self.cells)} other runs; name "
                "another folder, or add --add to do both in one"
            )
        if not self.exists:
            self._refuse_foreign()
            self.name, self.purpose = plan.name, plan.purpose
        if new:
            self.cells += tuple(new)
            self._write()
        return Grown(len(new), reused)

    def prepare(self, cell: Cell) -> Path:
        """Return the folder of a run with its spec in it, ready for `loopworth run`.

        A spec that is damaged is written anew, since plan.json has it. Raises OtherRunError where
        the folder is another run's, and ValueError where it cannot be written.
        """
        place = self.run_path(cell)
        try:
            place.mkdir(parents=True, exist_ok=True)
            there = RunSpec.from_json((place / SPEC).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            write_json(place / SPEC, cell.spec)
        except OSError as problem:
            raise refusal(place, problem) from problem
        else:
            if there.content_hash() != cell.hash:
                raise OtherRunError(f"{place / SPEC} is of another run; move the folder away")
        return place

    def started(self) -> set[str]:
        """Return the names of the runs that have a folder."""
        try:
            return {path.name for path in (self.path / RUNS).iterdir()}
        except FileNotFoundError:
            return set()

    def hold(self, **about: Any) -> Claim:
        """Become the one launcher of this sweep; raises HeldError where another lives."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise refusal(self.path, problem) from problem
        try:
            return Claim.take(self.path / LAUNCHER, about=about)
        except HeldError:
            raise HeldError(
                f"a launcher is at work on {self.path}; see it with `loopworth sweep watch "
                f"{self.path}`, end it with `loopworth sweep stop {self.path}`"
            ) from None

    def launcher(self) -> dict[str, Any] | None:
        """Return what the living launcher says about itself, None where there is none."""
        return living_owner(self.path / LAUNCHER)

    def _refuse_foreign(self) -> None:
        ours = (LAUNCHER, STOP, RUNS, LOGS, TABLE)
        try:
            there = sorted(p.name for p in self.path.iterdir())
        except FileNotFoundError:
            return
        foreign = [name for name in there if name not in ours and not name.startswith((".", PLAN))]
        if foreign:
            raise ValueError(
                f"{self.path} has no {PLAN} but holds {', '.join(foreign[:3])}; name a new folder "
                "for the sweep"
            )

    def _write(self) -> None:
        """Write the plan, a run a line."""
        head = {"format": _FORMAT, "version": 1, "name": self.name, "purpose": self.purpose}
        lines = ",\n".join(_lines(self.cells))
        text = f'{json.dumps(head)[:-1]}, "runs": [\n{lines}\n]}}\n'
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise refusal(self.path, problem) from problem
        write_whole(self.path / PLAN, text.encode())


def _lines(cells: Iterable[Cell]) -> Iterable[str]:
    names = Cell.__slots__
    for cell in cells:
        yield json.dumps({name: getattr(cell, name) for name in names})
