"""The columns of a run table: their names, units, meanings and accepted aliases.

This registry is the single source: `describe_columns()` prints it, the messages use it.
A table takes one of two forms, and rows of both may stand in one table:

- direct: `n_once`, `n_rec`, `recurrence`, `tokens`, `val_loss`;
- architecture: `width_scale` or `d_model`, `n_prelude`, `n_recur`, `n_coda`, `recurrence`,
  `val_loss`, and `tokens` or `budget_flops`; parameters, FLOPs and tokens then follow from it.

Names are matched without regard to case, to `-`, space, `.` and `/` against `_`, and to a leading
`config.` or `summary.`, as experiment trackers write them. An alias is used only where the name
itself is absent, and a note says so; two aliases for one column are refused.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loopworth.findings import Finding, RefusedTable, join_words
from loopworth.table.reading import RawTable

Kind = Literal["count", "number", "loss", "text"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `kind` decides how its text is read: a count may be written 1.3B."""

    name: str
    kind: Kind
    meaning: str
    aliases: tuple[str, ...] = ()


def _column(name: str, kind: Kind, meaning: str, aliases: str = "") -> Column:
    return Column(name, kind, meaning, tuple(aliases.split()))


COLUMNS = (
    _column("recurrence", "number", "executions of the recurrent block, 1 or more, may be a mean",
            "r recurrences num_recur n_recurrences num_recurrences mean_recurrence n_loops "
            "num_loops loops loop_count"),
    _column("tokens", "count", "training tokens",
            "D n_tokens num_tokens tokens_seen total_tokens train_tokens training_tokens"),
    _column("val_loss", "loss", "validation loss in nats per token",
            "loss validation_loss valid_loss eval_loss final_val_loss val_nll val_loss_nats"),
    _column("n_once", "count", "parameters used once a token, without token embeddings and head",
            "once_params params_once n_once_params"),
    _column("n_rec", "count", "parameters of the block executed r times, its injection included",
            "rec_params params_rec n_rec_params n_recurrent n_looped"),
    _column("n_injection", "count", "parameters of the injection, a part of n_rec",
            "n_inj injection_params n_injection_params"),
    _column("n_embeddings", "count", "parameters of the token embeddings and the head",
            "n_embedding embedding_params n_embedding_params"),
    _column("budget_flops", "count", "nominal training FLOPs; runs of one budget are a group",
            "C budget flops compute train_flops total_flops total_training_flops target_flops"),
    _column("train_flops_per_token", "count", "training FLOPs per token",
            "flops_per_token f_per_token training_flops_per_token"),
    _column("width_scale", "number", "width knob s; d_model is 64 s, up to a multiple of 128",
            "s scale"),
    _column("d_model", "number", "model width", "width hidden_size n_embd model_dim hidden_dim"),
    _column("n_prelude", "number", "layers before the loop",
            "prelude prelude_layers n_prelude_layers"),
    _column("n_recur", "number", "layers in the recurrent block",
            "recur_layers n_recur_layers n_recur_block"),
    _column("n_coda", "number", "layers after the loop", "coda coda_layers n_coda_layers"),
    _column("injection", "text", "way back into the loop: none, passthrough, linear, additive, "
            "diagonal or hyperconnections", "input_injection injection_kind"),
    _column("n_lanes", "number", "lanes of hyperconnections", "num_lanes lanes"),
    _column("bptt_window", "number", "recurrences with gradient; empty means all", "bptt_k bptt"),
    _column("vocab_size", "number", "vocabulary, padded", "vocab padded_vocab_size"),
    _column("context", "number", "tokens in a sequence",
            "sequence_len seq_len context_length max_seq_len"),
    _column("head_dim", "number", "width of one attention head"),
    _column("n_kv_heads", "number", "key and value heads; empty means one per query head",
            "n_kv_head num_kv_heads"),
    _column("mlp_ratio", "number", "MLP width over model width", "ffn_ratio"),
    _column("mlp_kind", "text", "squared_relu or swiglu"),
    _column("tied_embeddings", "text", "true where head and token embeddings are one tensor",
            "tie_embeddings"),
    _column("batch_tokens", "count", "tokens a step; turns budget_flops into tokens (default 2^18)",
            "total_batch_size"),
    _column("study", "text", "label of the set of runs that the row belongs to"),
    _column("recipe", "text", "label of the training recipe"),
    _column("run_id", "text", "identity of the run; rows that share it are its checkpoints",
            "id run run_name uid"),
    _column("step", "number", "optimiser step of the row", "_step steps global_step iteration"),
    _column("seed", "text", "random seed of the run", "random_seed"),
    _column("loss_unit", "text", "unit of val_loss; nats is the only one accepted"),
    _column("loss_source", "text", "how the loss was obtained"),
)  # fmt: skip
BY_NAME = {column.name: column for column in COLUMNS}

DIRECT = ("n_once", "n_rec", "recurrence", "tokens", "val_loss")
ARCHITECTURE = ("n_prelude", "n_recur", "n_coda", "recurrence", "val_loss")

_BARE_N = "may be unique, effective or total parameters; give n_once and n_rec"
_PERPLEXITY = "is perplexity; give val_loss as its natural logarithm"
_BITS = "is in bits per byte or character; multiply by ln 2 and by the bytes per token"
# Names that stand for more than one thing, or for a loss in another unit: never guessed.
_UNCLEAR = {
    **dict.fromkeys(("n", "params", "n_params", "num_params", "parameters"), _BARE_N),
    **dict.fromkeys(("n_parameters", "model_size", "size", "n_unique"), _BARE_N),
    **dict.fromkeys(("ppl", "val_ppl", "perplexity", "val_perplexity", "eval_ppl"), _PERPLEXITY),
    **dict.fromkeys(("bpb", "val_bpb", "bits_per_byte", "bpc", "val_bpc"), _BITS),
    **dict.fromkeys(("d", "t"), "may be tokens or a size of the model; rename it"),
    "l": "may be loss or layers; rename it",
    "train_loss": "is the loss on training data; give val_loss",
}


def describe_columns() -> str:
    """Return the registry as text, one column a line.

    >>> describe_columns().splitlines()[0]
    'recurrence: executions of the recurrent block, 1 or more, may be a mean (also r, ...)'
    """
    lines = []
    for column in COLUMNS:
        also = f" (also {', '.join(column.aliases)})" if column.aliases else ""
        lines.append(f"{column.name}: {column.meaning}{also}")
    return "\n".join(lines)


def match_columns(raw: RawTable) -> tuple[dict[str, list[Any]], dict[str, str], list[Finding]]:
    """Match the columns of a raw table with the registry.

    Returns the values by registry name, the name each was found under, and notes. Raises ValueError
    where two columns claim one name, or where what is there makes neither form of a table.

    >>> table = RawTable("t", "t.csv", {"r": [1], "val_loss": [2.9]}, (1,))
    >>> match_columns(table)
    Traceback (most recent call last):
    loopworth.findings.RefusedTable: t.csv lacks the columns n_once, n_rec and tokens. ...
    """
    claims: dict[str, list[str]] = {}
    for found in raw.columns:
        name = registry_name(found)
        if name is not None:
            claims.setdefault(name, []).append(found)
    chosen = {name: _choose(name, found, raw) for name, found in claims.items()}
    _require(set(chosen), raw)
    aliases = [(found, name) for name, found in chosen.items() if plain_name(found) != name]
    findings = []
    if aliases:
        read = join_words(f"{found} as {name}" for found, name in aliases)
        findings.append(Finding("column_aliases", "note", f"Columns were read by alias: {read}."))
    findings += _near_misses(raw, set(chosen))
    return {name: raw.columns[found] for name, found in chosen.items()}, chosen, findings


def plain_name(found: str) -> str:
    """Reduce a name to what it is matched by, `_step` being the one tracker name kept as it is."""
    name = re.sub(r"[\s\-]+", "_", found.strip().lower())
    name = re.sub(r"^(?:(?:config|summary|summary_metrics)[./:])+", "", name)
    return re.sub(r"[./:]", "_", name)


def _aliases() -> dict[str, str]:
    names = {column.name: column.name for column in COLUMNS}
    for column in COLUMNS:
        names.update({alias.lower(): column.name for alias in column.aliases if alias != "D"})
    return names


_NAMES = _aliases()


def registry_name(found: str) -> str | None:
    """Return the column of the registry that a name stands for, None where there is none."""
    if re.sub(r"^config[./:]", "", found.strip()) == "D":
        return "tokens"  # the one alias that case decides: d is a width to many
    return _NAMES.get(plain_name(found))


def _choose(name: str, found: Sequence[str], raw: RawTable) -> str:
    """Prefer the name itself over its aliases, and refuse to guess between two of a kind."""
    exact = [column for column in found if column == name] or [
        column for column in found if plain_name(column) == name
    ]
    candidates = exact or list(found)
    first = raw.columns[candidates[0]]
    if any(raw.columns[other] != first for other in candidates[1:]):
        message = (
            f"{raw.source} has {join_words(candidates)}, and each could be {name} "
            f"({BY_NAME[name].meaning}); rename the right one to {name} or drop the others."
        )
        evidence = {"columns": list(candidates)}
        raise RefusedTable(Finding("columns_ambiguous", "error", message, evidence=evidence))
    return candidates[0]


def _require(names: set[str], raw: RawTable) -> None:
    direct = [name for name in DIRECT if name not in names]
    built = [name for name in ARCHITECTURE if name not in names]
    if not names & {"width_scale", "d_model"}:
        built.insert(0, "d_model (or width_scale)")
    if not names & {"tokens", "budget_flops"}:
        built.append("tokens (or budget_flops)")
    if not direct or not built:
        return
    missing = built if len(built) < len(direct) else direct
    message = (
        f"{raw.source} lacks the column{'s' if len(missing) > 1 else ''} {join_words(missing)}. "
        f"It has {join_words(raw.columns)}.{_hints(missing, raw, names)}"
    )
    remedy = (
        f"A row needs {join_words(DIRECT)}; or, for an architecture, d_model or width_scale, "
        f"{join_words(ARCHITECTURE)}, and tokens or budget_flops."
    )
    evidence = {"missing": list(missing), "columns": list(raw.columns)}
    raise RefusedTable(Finding("columns_missing", "error", message, (), remedy, evidence))


def _hints(missing: Sequence[str], raw: RawTable, taken: set[str]) -> str:
    unused = {
        plain_name(found): found for found in raw.columns if registry_name(found) not in taken
    }
    unclear = [(found, _UNCLEAR[plain]) for plain, found in unused.items() if plain in _UNCLEAR]
    unclear.sort(key=lambda pair: pair[1] not in (_PERPLEXITY, _BITS))  # the unit comes first
    hints = [f" {found} {why}." for found, why in unclear]
    for name in missing:
        bare = name.split(" ")[0]
        near = difflib.get_close_matches(bare, [p for p in unused if p not in _UNCLEAR], n=1)
        if near:
            hints.append(f" Is {unused[near[0]]} meant to be {bare}?")
    return "".join(hints)


def _near_misses(raw: RawTable, taken: set[str]) -> list[Finding]:
    """Say where a column that is not used looks like a misspelt optional one."""
    optional = [column.name for column in COLUMNS if column.name not in taken]
    findings = []
    for found in raw.columns:
        if registry_name(found) is None:
            near = difflib.get_close_matches(plain_name(found), optional, n=1, cutoff=0.86)
            if near:
                message = f"Column {found} is not used; is it meant to be {near[0]}?"
                findings.append(Finding("unknown_column", "warning", message, remedy="Rename it."))
    return findings
