"""A plan as a terminal page: its grid run by run, then what it costs on a device."""

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from loopworth.plan import Plan, PlannedRun
from loopworth.plan.cost import PlanCost, RunCost
from loopworth.quantities import (
    format_bytes,
    format_count,
    format_duration,
    format_flops,
    format_quantity,
)

_ROLES = {"cell": "", "plain": "no loop", "untied": "untied"}


def plan_page(plan: Plan, price: PlanCost) -> Group:
    """Return a page for a rich console: title, one line a run, totals, findings; 80 columns."""
    title = Text(f"{plan.name}: {len(plan.runs)} runs, {format_flops(plan.flops)} FLOPs", "bold")
    title.append(f"\n{plan.purpose}" if plan.purpose else "", style="not bold dim")
    return Group(title, _grid(plan, price), _totals(price), *_findings(price))


def _grid(plan: Plan, price: PlanCost) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("budget", "width", "r", "layers"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("N_once", "N_rec", "tokens", "steps", "hours"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, style="dim")
    before = None
    for planned, run_cost in zip(plan.runs, price.runs, strict=True):
        if before is not None and before != (planned.study, planned.run.budget_flops):
            table.add_section()
        before = (planned.study, planned.run.budget_flops)
        table.add_row(*_cells(planned, run_cost))
    return table


def _cells(planned: PlannedRun, run_cost: RunCost) -> list[str]:
    """Write one run."""
    row, model = planned.to_json(), planned.run.model
    return [
        format_flops(row["flops"] if planned.run.budget_flops is None else row["budget_flops"]),
        str(model.d_model),
        format_count(model.recurrence),
        f"{model.n_prelude}+{model.n_recur}+{model.n_coda}",
        format_quantity(row["n_once"]),
        format_quantity(row["n_rec"]),
        format_quantity(row["tokens"]),
        format_count(row["steps"]),
        f"{run_cost.hours:.3g}",
        _remark(planned),
    ]


def _remark(planned: PlannedRun) -> str:
    """Say what sets a run apart from the cells of its grid."""
    model = planned.run.model
    words = [_ROLES[planned.role]]
    if model.gradient_visits != model.recurrence:
        words.append(f"window {model.bptt_window}")
    if model.injection not in ("none", "linear"):
        words.append(model.injection)
    return ", ".join(word for word in words if word)


def _totals(price: PlanCost) -> Text:
    """Say hours, money, memory and disk, and which of them rest on an assumption."""
    kind = "measured" if price.measured else "assumed"
    state = max(price.runs, key=lambda run: run.state_bytes)
    text = Text()
    text.append(f"{price.hours:,.3g} hours of one {price.device.title}", style="bold")
    text.append(
        f" at {price.utilisation:.0%} of {format_flops(price.device.peak_flops)} FLOP/s ({kind}), "
        f"about ${price.money:,.0f}\n"
    )
    longest = max(run.hours for run in price.runs)
    text.append(f"longest run {format_duration(longest * 3600)}; ")
    text.append(f"largest state {format_bytes(state.state_bytes)} and ")
    text.append(f"{format_bytes(state.activation_bytes)} of activations a sequence; ")
    text.append(f"one checkpoint of every run {format_bytes(price.disk_bytes)}")
    return text


def _findings(price: PlanCost) -> list[Text]:
    return [
        Text(f"{finding.severity}: {finding.message}; {finding.remedy}", style="red")
        for finding in price.findings
    ]
