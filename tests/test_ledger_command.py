import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from loopworth.cli import main
from loopworth.ledger import Convention, Horizon, horizon, ledger
from loopworth.spec import ModelSpec

SPEC = ModelSpec(640, n_recur=2, recurrence=8)


def run(*arguments: str, stdin: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["ledger", *arguments], input=stdin)
    return result.exit_code, result.output


def test_command_prints_one_json_object() -> None:
    code, output = run(
        "--scale", "10", "--bptt-window", "2", "--count-injection", "once", "--budget", "1e18",
        "--json",
    )  # fmt: skip
    page = json.loads(output)
    account = ledger(ModelSpec(640, bptt_window=2))
    assert code == 0
    assert ModelSpec.from_json(page["spec"]) == account.spec
    assert page["count"]["n_once"] == account.count(Convention("once")).n_once
    assert page["convention"]["name"] == Convention("once").name
    assert page["train_flops_per_token"] == account.train_flops_per_token
    assert Horizon(**page["horizon"]) == horizon(1e18, account.train_flops_per_token)
    assert sum(row["parameters"] for row in page["tensors"]) == page["parameters"]


def test_command_shows_tensors_totals_and_steps_within_80_columns() -> None:
    code, output = run("--width", "640", "--budget", "1e18", "--kv-heads", "1", "--tied")
    assert code == 0
    for words in (
        "recur, 4 layers",
        "attention.scores",
        "injection.linear",
        "injection recurrent, norms in, embeddings out",
        "N_once",
        "inference",
        "keys and values",
        "of 262,144 tokens",
    ):
        assert words in output
    assert max(map(len, output.splitlines())) <= 80
    assert "…" not in output


def test_command_reads_a_spec_and_options_change_it(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(SPEC.to_json()))
    page = json.loads(run("--spec", str(path), "--recurrence", "2.5", "--json")[1])
    assert page["spec"] == SPEC.to_json() | {"recurrence": 2.5}
    assert page["horizon"] is None
    page = json.loads(run("--spec", "-", "--scale", "20", "--json", stdin=path.read_text())[1])
    assert page["spec"]["d_model"] == 1280


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "--scale S, --width D or --spec FILE"),
        (["--scale", "3", "--width", "384"], 2, "give one of them"),
        (["--scale", "10", "--budget", "1.3Q"], 2, "'1.3Q' is not a quantity"),
        (["--scale", "10", "--injection", "liner"], 2, "'liner' is not one of"),
        (["--spec", "missing.json"], 1, "missing.json: No such file"),
        (["--spec", os.devnull], 1, "is a device"),
        (["--scale", "10", "--recurrence", "1e308"], 1, "which no machine has"),
        (["--scale", "1e300"], 1, "which no machine has"),
        (["--scale", "10", "--kv-heads", "3"], 1, "error: n_kv_heads=3 does not divide"),
        (["--scale", "10", "--budget", "1e3"], 1, "less than half a step"),
        (["--spec", "-"], 1, "is not JSON"),
    ],
)
def test_command_refuses_without_a_traceback(arguments: list[str], code: int, words: str) -> None:
    exit_code, output = run(*arguments, stdin="{")
    assert exit_code == code
    assert words in " ".join(output.split())
    assert "Traceback" not in output
