"""The promises around the code: what is installed, what is imported, how a command ends."""

import json
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import loopworth
from loopworth import policy
from loopworth.cli import main
from loopworth.datasets import builtin_names
from loopworth.policy import quantity

README_COMMANDS = ("./setup && .venv/bin/loopworth fit", ".venv/bin/pytest")

# A command that ends as told, in a process of its own.
PROBE = """
import os, signal, sys, click
from loopworth.cli import main

@main.command()
def probe():
    {body}

main(["probe"], prog_name="loopworth")
"""


def python(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, *args], check=False, capture_output=True, text=True, env=env
    )


def probe(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return python("-c", PROBE.format(body=body), **environment)


# --- what is installed and imported


def test_version_is_that_of_the_installed_package() -> None:
    assert loopworth.__version__ == metadata.version("loopworth")
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"loopworth {loopworth.__version__}\n")


def test_the_base_install_requires_neither_torch_nor_pandas_nor_scipy() -> None:
    base = [line for line in metadata.requires("loopworth") or [] if "extra ==" not in line]
    names = {re.split(r"[^\w-]", line)[0] for line in base}
    assert names == {"click", "matplotlib", "numpy", "rich"}


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import json, sys\n"
        "from loopworth.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    ran = python("-c", script)
    loaded = set(json.loads(ran.stderr.splitlines()[-1]))
    heavy = {"numpy", "scipy", "matplotlib", "pandas", "pyarrow", "torch", "rich", "asyncio"}
    assert "click" in loaded
    assert not loaded & heavy


@pytest.mark.parametrize("name", loopworth.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(loopworth, name) is not None
    assert name in dir(loopworth)


def test_no_public_name_hides_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(loopworth.__path__)}
    assert not modules & set(loopworth.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'phi'"):
        _ = loopworth.phi


# --- what the documents and the checks say


def test_the_readme_gives_the_two_commands_and_ci_runs_the_second(root: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8").splitlines()
    for command in README_COMMANDS:
        assert command in readme
    assert README_COMMANDS[1] in (root / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    for script in ("setup", ".ci/run"):
        assert os.access(root / script, os.X_OK)


def test_the_readme_names_every_built_in_table_and_exit_code(root: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in readme for name in builtin_names())
    codes = re.findall(r"^\| (\d+) \|", readme, flags=re.MULTILINE)
    known = {value for name, value in vars(policy).items() if name.startswith("EXIT_")}
    assert {int(code) for code in codes} >= known | {0, 2}


def test_the_readme_s_two_example_tables_say_the_same(root: Path, tmp_path: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    tables = []
    for number, text in enumerate(re.findall(r"```csv\n(.*?)```", readme, flags=re.DOTALL)):
        path = tmp_path / f"{number}.csv"
        path.write_text(text, encoding="utf-8")
        tables.append(loopworth.load_runs(path))
    counts, built = tables
    for name in ("recurrence", "n_once", "n_rec", "tokens", "val_loss", "budget_flops"):
        assert getattr(counts, name).tolist() == getattr(built, name).tolist()


def test_constraints_pin_names_and_nothing_else(root: Path) -> None:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins == sorted(pins, key=lambda pin: pin.split("==")[0])
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.+!]+", pin) for pin in pins)


def test_tracked_files_name_no_path_of_one_machine(root: Path) -> None:
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run([git, "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    private = re.compile(rb"(?<![\w.])/(?:work|farm|root|home|Users)/")
    tracked = [root / os.fsdecode(name) for name in listing.stdout.split(b"\0") if name]
    assert [
        path.name for path in tracked if path.is_file() and private.search(path.read_bytes())
    ] == []


# --- how a command ends


def test_wrong_usage_ends_with_2() -> None:
    for args in (["no-such-command"], ["--no-such-option"], ["completion", "tcsh"]):
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert "Error:" in result.stderr
    assert python("-m", "loopworth", "no-such-command").returncode == 2


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (ValueError("tokens is 0 in row 3; give a positive count"), "tokens is 0 in row 3"),
        (FileNotFoundError(2, "No such file or directory", "runs.csv"), "runs.csv: No such file"),
        (MemoryError("9 TiB"), "not enough memory for this (9 TiB); ask for less"),
        (OverflowError("too large"), "(too large); use smaller ones"),
        (RuntimeError("boom"), "RuntimeError: boom"),
        (ValueError("\x1b[31mréd\rfile"), "error: \\x1b[31mréd\\rfile\n"),
        (ValueError(), "ValueError"),
    ],
)
def test_a_problem_is_one_message_and_1(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, message: str
) -> None:
    @click.command()
    def failing() -> None:
        raise raised

    monkeypatch.setitem(main.commands, "failing", failing)
    result = CliRunner().invoke(main, ["failing"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert ("defect in loopworth" in result.stderr) == (not str(raised) or "boom" in str(raised))


def test_what_a_command_needs_has_no_brackets_in_its_usage() -> None:
    usage = CliRunner().invoke(main, ["compare", "--help"]).stdout.splitlines()[0]
    assert usage.endswith("compare [OPTIONS] BASE METHOD...")


def test_a_command_may_choose_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @click.pass_context
    def choosing(ctx: click.Context) -> None:
        ctx.exit(1)

    monkeypatch.setitem(main.commands, "choosing", choosing)
    assert CliRunner().invoke(main, ["choosing"]).exit_code == 1


def test_a_process_shows_its_traceback_only_when_asked() -> None:
    quiet = probe("raise KeyError('x')", LOOPWORTH_DEBUG="")
    assert quiet.returncode == 1
    assert quiet.stdout == ""
    assert "KeyError" in quiet.stderr
    assert "Traceback" not in quiet.stderr
    asked = probe("raise KeyError('x')", LOOPWORTH_DEBUG="1")
    assert asked.returncode == 1
    assert "Traceback" in asked.stderr


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_an_interrupt_ends_with_130() -> None:
    # A shell starts what runs in the background with Ctrl-C ignored, tests included.
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    stopped = probe(f"{heard}; os.kill(os.getpid(), signal.SIGINT); signal.pause()")
    assert stopped.returncode == 128 + signal.SIGINT
    assert "Traceback" not in stopped.stderr


@pytest.mark.parametrize(
    "body", ["click.echo('x' * 9)", "sys.stdout.write('x' * 9)", "main(['--help'])"]
)
def test_a_reader_that_leaves_early_is_no_message_and_141(body: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    ran = subprocess.run(
        [sys.executable, "-c", PROBE.format(body=body)],
        check=False,
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write_end)
    assert (ran.returncode, ran.stderr) == (141, "")


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-"])
@pytest.mark.parametrize("command", ["check", "fit --bootstrap 0", "check --no-such-option"])
def test_a_closed_stream_changes_no_exit_code(closed: str, command: str) -> None:
    line = f'"{sys.executable}" -m loopworth {command} {closed}'
    ran = subprocess.run(["sh", "-c", line], check=False, capture_output=True, text=True)
    assert ran.returncode == (2 if "no-such" in command else 0)
    assert "Traceback" not in ran.stderr
    if "check" in command.split() and closed == "2>&-" and ran.returncode == 0:
        assert ran.stdout.startswith("Clean")


def test_progress_outlives_its_reader() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "loopworth", "fit", "--bootstrap", "0", "--json"]
    ran = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=write_end, text=True)
    os.close(write_end)
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["phi"]["estimate"] == pytest.approx(0.43, abs=0.01)


# --- what a reader sees: 80 columns, nothing invisible


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    for name, command in group.commands.items():
        inner = (*path, name)
        found += commands(command, inner) if isinstance(command, click.Group) else [inner]
    return found


@pytest.mark.parametrize("path", commands(main), ids=" ".join)
def test_help_has_80_columns_and_cuts_no_sentence(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0
    for line in result.stdout.splitlines():
        assert len(line) <= 80
        assert line == line.rstrip()
        assert line.startswith("Usage:") or not line.endswith("...")


def test_help_names_every_built_in_table() -> None:
    text = CliRunner().invoke(main, ["fit", "--help"]).stdout
    assert set(builtin_names()) <= set(text.split())


def test_messages_are_wrapped_and_long_names_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "/a/" + "long" * 30 + ".csv"

    @click.command()
    @click.option("--wrong", is_flag=True)
    def failing(wrong: bool) -> None:
        if wrong:
            raise click.BadParameter("It is not what it should be, " * 5, param_hint="--x")
        raise ValueError(f"{name} cannot be read, since {'it is wrong ' * 9}\nSecond line.")

    monkeypatch.setitem(main.commands, "failing", failing)
    for arguments in (["failing"], ["failing", "--wrong"]):
        lines = CliRunner().invoke(main, arguments).stderr.splitlines()
        assert all(len(line) <= 80 or line == name for line in lines)
        assert all(line == line.rstrip() for line in lines)
    assert name in CliRunner().invoke(main, ["failing"]).stderr.splitlines()
    assert lines[-1] != "Second line."


def test_a_page_is_plain_lines_of_80_columns_where_it_is_piped() -> None:
    body = (
        "from rich.text import Text; from loopworth.policy import print_page; "
        "print_page(Text('long words ' * 40, style='bold'))"
    )
    for columns in ("40", "300"):
        text = probe(body, COLUMNS=columns).stdout
        assert 70 < max(map(len, text.splitlines())) <= 80
        assert not re.search(r"[ \t]$|\x1b", text, flags=re.MULTILINE)


def test_a_page_needs_no_more_of_an_encoding_than_it_has() -> None:
    body = (
        "from rich.text import Text; from loopworth.policy import print_page; "
        "print_page(Text('● r = 2'))"
    )
    ran = probe(body, PYTHONIOENCODING="latin-1")
    assert (ran.returncode, ran.stdout) == (0, "? r = 2\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_LOOPWORTH_COMPLETE" in result.stdout


def test_completion_offers_the_commands() -> None:
    environment = {
        "_LOOPWORTH_COMPLETE": "bash_complete",
        "COMP_WORDS": "loopworth ",
        "COMP_CWORD": "1",
    }
    script = "from loopworth.cli import main; main(prog_name='loopworth')"
    assert "plain,completion" in python("-c", script, **environment).stdout.split()


def test_a_quantity_that_cannot_be_read_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @click.option("--budget", type=quantity)
    def spending(budget: float) -> None:
        click.echo(f"{budget:.0f}")

    monkeypatch.setitem(main.commands, "spending", spending)
    assert CliRunner().invoke(main, ["spending", "--budget", "1.3B"]).stdout == "1300000000\n"
    refused = CliRunner().invoke(main, ["spending", "--budget", "many"])
    assert refused.exit_code == 2
    assert "--budget" in refused.stderr
