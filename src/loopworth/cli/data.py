"""The commands on data: prepare text for training, and show what was prepared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from loopworth.cli.options import as_json, quiet
from loopworth.policy import print_page

if TYPE_CHECKING:
    from loopworth.data import TokenData


@click.group()
def data() -> None:
    """Turn text into token shards for training, and look at them.

    \b
    Examples:
      loopworth data prepare corpus.jsonl --out corpus
      loopworth data show corpus
    """


@data.command(short_help="Tokenise text, split and shuffle it, write token shards.")
@click.argument("source")
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="A new folder; it appears whole or not at all.",
)
@click.option(
    "--tokenizer",
    default="bytes",
    metavar="NAME",
    help="bytes, chars, bpe:SIZE trained here, or a tokenizer.json [bytes].",
)
@click.option("--bos", metavar="TOKEN", help="Of a tokenizer.json: the token that starts a text.")
@click.option(
    "--validation",
    type=float,
    default=0.05,
    metavar="SHARE",
    help="Share of the documents held out, below 0.5 [0.05].",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Of the split and the shuffle [0].",
)
@click.option(
    "--text-column",
    default="text",
    metavar="NAME",
    help="Key or column of the text in JSON lines, Parquet, hub [text].",
)
@click.option(
    "--separator",
    metavar="TEXT",
    help=r"Cuts .txt and .md files into documents; \n is a new line [a file is a document].",
)
@click.option("--skip-bad", is_flag=True, help="Leave out what cannot be read, and count it.")
@click.option("--hub-config", metavar="NAME", help="Configuration of a hub data set.")
@click.option(
    "--hub-split", default="train", metavar="NAME", help="Split of a hub data set [train]."
)
@as_json
@quiet
def prepare(
    source: str, out: Path, tokenizer: str, bos: str | None, validation: float, seed: int,
    text_column: str, separator: str | None, skip_bad: bool, hub_config: str | None,
    hub_split: str, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Tokenise text, split and shuffle it by document, and write token shards.

    SOURCE is a file or a folder (.txt, .md, .jsonl, .jsonl.gz, .parquet), docstrings (English from
    the documentation of Python and installed packages), or hub:OWNER/NAME.

    No text is lost: documents follow each other, BOS before each. Documents that repeat another one
    stay on its side of the split. The same text gives the same digest, however its files are named.

    \b
    Examples:
      loopworth data prepare corpus.jsonl --out corpus --tokenizer bpe:4096
      loopworth data prepare book.txt --out book --separator "\\n\\n"
      loopworth data prepare docstrings --out docs --tokenizer chars
      loopworth data prepare hub:roneneldan/TinyStories --out stories
    """
    from loopworth.data import prepare as prepare_data
    from loopworth.report.progress import progress

    if separator is not None:
        separator = separator.replace("\\n", "\n").replace("\\t", "\t")
    with progress(quiet) as tell:
        made = prepare_data(
            source,
            out,
            tokenizer=tokenizer,
            validation=validation,
            seed=seed,
            text_column=text_column,
            separator=separator,
            skip_bad=skip_bad,
            bos=bos,
            hub_config=hub_config,
            hub_split=hub_split,
            on_progress=tell,
        )
    _show(made.open(), 0, as_json)
    if not as_json:
        click.echo(f"\nWritten to {out}.")


@data.command(short_help="Show a prepared folder: counts, digest, some of its text.")
@click.argument("folder", metavar="DIR")
@click.option(
    "--sample",
    type=click.IntRange(min=0),
    default=3,
    metavar="N",
    help="Beginnings of N train documents [3].",
)
@click.option("--verify", is_flag=True, help="Read all files and compare their sha256.")
@as_json
def show(folder: str, sample: int, verify: bool, as_json: bool) -> None:
    """Show a prepared folder: counts, bytes a token, digest, some of its text.

    DIR is a folder made by `loopworth data prepare`, or docstrings, which is prepared on first use.

    \b
    Examples:
      loopworth data show corpus --verify
      loopworth data show docstrings --sample 10
    """
    from loopworth.data import open_data
    from loopworth.spec import DataSpec

    opened = open_data(DataSpec(folder))
    if verify:
        opened.verify()
    _show(opened, sample, as_json)
    if verify and not as_json:
        click.echo("\nAll files have the sha256 that they were written with.")


def _show(opened: TokenData, sample: int, as_json: bool) -> None:
    from loopworth.report.data_text import data_json, data_page, samples

    pieces = samples(opened, sample)
    if as_json:
        import json

        click.echo(json.dumps(data_json(opened, pieces), indent=2))
        return
    print_page(data_page(opened, pieces))
