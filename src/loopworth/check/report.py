"""What a check found: findings, what was looked at and found clean, and what could not be."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from loopworth import __version__
from loopworth.findings import Finding, join_words
from loopworth.quantities import format_count

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of check: its key, what it makes sure of, and the codes it can find."""

    key: str
    title: str
    codes: tuple[str, ...]


def _kind(key: str, title: str, codes: str) -> Kind:
    return Kind(key, title, tuple(codes.split()))


KINDS = (
    _kind("loss_unit", "loss in nats per token",
          "loss_unit_not_nats loss_is_perplexity loss_in_bits loss_below_one loss_mixed_units "
          "losses_disagree"),
    _kind("units", "single tokens, parameters and FLOPs", "mixed_units unit_suspected"),
    _kind("columns", "columns of known meaning",
          "columns_missing columns_ambiguous parameters_ambiguous unknown_column read_as_unlooped "
          "column_assumed column_aliases assumed_defaults"),
    _kind("values", "finite values in range",
          "no_usable_rows missing_value not_finite not_a_number not_positive too_large negative "
          "recurrence_below_one invalid_architecture value_not_used"),
    _kind("copies", "each run once", "exact_duplicates near_duplicates"),
    _kind("conflicts", "one loss a configuration",
          "same_configuration replicates replicates_disagree seed_noise"),
    _kind("identifiability", "a design that tells the constants apart",
          "fixed_unique_parameters tokens_proportional_to_parameters one_recurrence "
          "two_recurrences no_unlooped_runs single_budget one_token_count "
          "fewer_rows_than_parameters"),
    _kind("flops", "FLOPs of the architecture, not 6 N D",
          "counts_disagree flops_disagree flops_are_6n tokens_from_6nd budgets_from_6nd"),
    _kind("budgets", "budgets on target",
          "budget_disagrees budget_off_target budgets_joined budgets_chained"),
    _kind("scatter", "losses that differ, by more than noise",
          "losses_all_equal law_explains_little noise_hides_phi"),
    _kind("diverged", "no diverged run", "diverged_runs"),
    _kind("tuning", "runs and cells on the law",
          "under_tuned below_the_law cell_above_the_law cell_below_the_law"),
    _kind("valleys", "iso-FLOP valleys with a minimum",
          "isoflop_edge isoflop_opens_downwards isoflop_flat isoflop_too_few_widths "
          "isoflop_no_budget"),
    _kind("grid", "no hole in the grid, a control at every budget",
          "missing_control missing_cells"),
    _kind("independence", "independent runs, no checkpoints",
          "checkpoints_of_one_run checkpoints_suspected checkpoints_possible"),
    _kind("mixing", "one recipe, method, vocabulary and loss source",
          "mixed_recipes mixed_methods mixed_vocabularies several_seeds mixed_loss_sources "
          "label_shift"),
)  # fmt: skip
_STAGE = {code: place for place, kind in enumerate(KINDS) for code in kind.codes}


@dataclass(frozen=True, slots=True)
class SeedNoise:
    """Standard deviation of the loss between reruns of one configuration, pooled over groups.

    `nats` per token, `dof` degrees of freedom (reruns minus groups), `rows` all runs that took
    part; `labelled` is false where no seed tells that these are reruns.
    """

    nats: float
    dof: int
    groups: int
    rows: tuple[int, ...]
    labelled: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self) | {"rows": list(self.rows)}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The outcome of a check.

    n_rows, n_usable   rows of the source, and those that a law could be fitted to
    findings           worst first, then in the order of KINDS: units before identifiability
    passed             kinds of check that were done and found nothing worse than a note
    not_checked        kinds that could not be done, and why
    seed_noise         where the same configuration was rerun, else None
    digest             sha256 of the usable numbers, empty where there are none
    """

    name: str
    source: str
    convention: str
    n_rows: int
    n_usable: int
    findings: tuple[Finding, ...]
    passed: tuple[Kind, ...]
    not_checked: tuple[tuple[Kind, str], ...]
    seed_noise: SeedNoise | None
    digest: str
    citation: str | None = None

    @property
    def clean(self) -> bool:
        """Whether nothing worse than a note was found."""
        return all(finding.severity == "note" for finding in self.findings)

    def count(self, severity: str) -> int:
        """Return how many findings have a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def verdict(self) -> str:
        """The outcome in one sentence, its worst reasons in order of what to mend first."""
        if self.clean:
            notes = self.count("note")
            more = f" {notes} note{'s' if notes > 1 else ''}." if notes else ""
            return f"Clean: {format_count(self.n_usable)} runs, nothing to mend.{more}"
        worst = "error" if self.count("error") else "warning"
        reasons = [each for each in self.findings if each.severity == worst]
        codes = list(dict.fromkeys(each.code for each in reasons))
        named = join_words([*codes[:4], *([f"{len(codes) - 4} more"] if len(codes) > 4 else [])])
        if worst == "error":
            return f"Refused: {named}. Mend these before fitting a law."
        usable = f"{format_count(self.n_usable)} of {format_count(self.n_rows)} rows usable"
        return f"Doubtful: {named}; {usable}."

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "verdict": self.verdict,
            "clean": self.clean,
            "n_rows": self.n_rows,
            "n_usable": self.n_usable,
            "counts": {severity: self.count(severity) for severity in SEVERITIES},
            "findings": [finding.to_json() for finding in self.findings],
            "passed": [{"check": kind.key, "title": kind.title} for kind in self.passed],
            "not_checked": [
                {"check": kind.key, "title": kind.title, "why": why}
                for kind, why in self.not_checked
            ],
            "seed_noise": self.seed_noise.to_json() if self.seed_noise else None,
            "provenance": {
                "source": self.source,
                "citation": self.citation,
                "convention": self.convention,
                "data_sha256": self.digest or None,
                "loopworth": __version__,
            },
        }


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, then by the order of KINDS, then by their first row.

    >>> late = Finding("fixed_unique_parameters", "error", "N is fixed.")
    >>> [each.code for each in in_order([late, Finding("loss_in_bits", "error", "Bits.")])]
    ['loss_in_bits', 'fixed_unique_parameters']
    """
    return tuple(
        sorted(
            findings,
            key=lambda each: (
                SEVERITIES.index(each.severity),
                _STAGE.get(each.code, len(KINDS)),
                each.rows[:1],
            ),
        )
    )


def sort_kinds(
    findings: tuple[Finding, ...], not_checked: dict[str, str]
) -> tuple[tuple[Kind, ...], tuple[tuple[Kind, str], ...]]:
    """Return the kinds that passed, and those not checked with the reason (by key)."""
    bad = {each.code for each in findings if each.severity != "note"}
    passed = tuple(
        kind for kind in KINDS if kind.key not in not_checked and bad.isdisjoint(kind.codes)
    )
    skipped = tuple((kind, not_checked[kind.key]) for kind in KINDS if kind.key in not_checked)
    return passed, skipped
