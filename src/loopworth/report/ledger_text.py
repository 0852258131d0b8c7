"""The ledger of a model as a terminal page: its tensors, then what they add up to."""

from itertools import groupby

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from loopworth.ledger import Convention, Horizon, Ledger
from loopworth.quantities import (
    format_bytes,
    format_count,
    format_flops,
    format_quantity,
    format_share,
)
from loopworth.tensors import TensorRow

_BAR = 10  # cells of the widest bar
_LAYERS = ("prelude", "recur", "coda")


def ledger_page(
    account: Ledger, convention: Convention | None = None, reach: Horizon | None = None
) -> Group:
    """Return a page for a rich console: title, tensors, totals, and what a budget buys.

    `reach` is the horizon of a budget. The page fits 80 columns.
    """
    convention = convention or Convention()
    page = Group(_title(account), _tensors(account), _totals(account, convention))
    return Group(page, _budget(account, convention, reach)) if reach else page


def _title(account: Ledger) -> Text:
    """Say which model this is in two lines."""
    spec = account.spec
    kv = f" ({spec.kv_heads} for k and v)" if spec.kv_heads != spec.n_heads else ""
    r = _times(spec.recurrence)
    depth = _times(spec.effective_layers)
    text = Text(f"{spec.d_model} wide, {spec.n_heads} heads{kv}: ", style="bold")
    text.append(f"{spec.n_prelude} prelude + {r} x {spec.n_recur} recur + {spec.n_coda} coda")
    text.append(f" = {depth} layers\n")
    injection = "no" if spec.injection == "none" else spec.injection
    truncated = spec.gradient_visits != spec.recurrence
    window = f"gradient in the last {spec.bptt_window} of {r}" if truncated else "full gradient"
    sizes = f"vocabulary {format_count(spec.vocab_size)}, context {format_count(spec.context)}"
    text.append(f"{injection} injection, {window}, {sizes}", style="not bold dim")
    return text


def _tensors(account: Ledger) -> Table:
    """List the tensors in the order in which a token meets them, layers under their group."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("\ntensor", no_wrap=True)
    for title in ("\nparameters", "\nvisits", "with\ngradient", "FLOPs\na token", "\nshare"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, style="cyan", min_width=_BAR)
    total = account.train_flops_per_token
    widest = max(row.train_flops_per_token for row in account.rows)
    for group, members in groupby(account.rows, key=lambda row: row.group):
        rows = list(members)
        if group not in _LAYERS:
            for row in rows:
                table.add_row(*_cells(row.name, [row], total), _bar(row, widest))
            continue
        table.add_row(*_cells(f"{group}, {_layers(rows[0].layers)}", rows, total), style="bold")
        for row in rows:
            name = "  " + row.name.removeprefix(f"{group}.")
            table.add_row(*_cells(name, [row], total), _bar(row, widest), style="dim")
    table.add_section()
    table.add_row(
        "all", format_quantity(account.parameters), "", "", format_flops(total), "", style="bold"
    )
    return table


def _cells(name: str, rows: list[TensorRow], total: float) -> tuple[str, ...]:
    """Write the numbers of a tensor, or of a group whose tensors share their visits."""
    parameters = sum(row.parameters for row in rows)
    flops = sum(row.train_flops_per_token for row in rows)
    return (
        name,
        format_quantity(parameters) if parameters else "-",
        _times(rows[0].visits_forward),
        _times(rows[0].visits_gradient),
        format_flops(flops) if flops else "free",
        format_share(flops / total) if flops else "-",
    )


def _times(number: float) -> str:
    """Write how often, in full up to what a column holds."""
    return format_count(number) if number < 1e5 else format_quantity(number)


def _bar(row: TensorRow, widest: float) -> str:
    return "▇" * round(_BAR * row.train_flops_per_token / widest)


def _layers(number: int) -> str:
    return f"{number} layer" if number == 1 else f"{number} layers"


def _totals(account: Ledger, convention: Convention) -> Group:
    """Add up parameters, compute and memory, each with its unit."""
    spec, count = account.spec, account.count(convention)
    r, kv = _times(spec.recurrence), account.kv_bytes_per_token()
    unrolled = account.n_eff(spec.recurrence, convention)
    stored, slots = format_quantity(account.parameters), _times(account.kv_slots)
    context, cache = format_count(spec.context), format_bytes(kv * spec.context)
    return Group(
        _section(
            f"Parameters ({convention.name})",
            ("N_once", format_quantity(count.n_once), "used once a token"),
            ("N_rec", format_quantity(count.n_rec), f"used {r} times a token"),
            ("N", format_quantity(count.n_unique), f"unique: {format_count(count.n_unique)}"),
            ("N_once + r N_rec", format_quantity(unrolled), "what full equivalence would count"),
        ),
        _section(
            "Compute (FLOPs per token)",
            ("training", format_flops(account.train_flops_per_token, 4), "forward and backward"),
            (
                "inference",
                format_flops(account.inference_flops_per_token, 4),
                f"forward, attending to {context} tokens",
            ),
        ),
        _section(
            "Memory (bf16)",
            ("weights", format_bytes(account.weight_bytes()), f"{stored} with embeddings"),
            ("keys and values", format_bytes(kv), f"a token, in {slots} slots"),
            ("", cache, f"at the full context of {context}"),
        ),
    )


def _budget(account: Ledger, convention: Convention, reach: Horizon) -> Group:
    """Say how far a budget reaches."""
    batch = format_count(reach.tokens // reach.steps)
    share = format_quantity(reach.tokens / account.count(convention).n_unique)
    return _section(
        "Budget",
        ("steps", format_count(reach.steps), f"of {batch} tokens"),
        ("tokens", format_quantity(reach.tokens), f"{share} a unique parameter"),
        ("FLOPs", format_flops(reach.flops, 4), "spent in whole steps"),
    )


def _section(title: str, *lines: tuple[str, str, str]) -> Group:
    """List name, number and meaning under a headline."""
    page = Table.grid(padding=(0, 2, 0, 0))
    page.add_column(min_width=17)
    page.add_column(justify="right", style="bold", no_wrap=True, min_width=10)
    page.add_column(style="dim")
    for line in lines:
        page.add_row(*line)
    return Group(Text(f"\n{title}", style="bold green"), page)
