"""`replay`: gives a verdict again from a dump alone, without a node, a store or Ray."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from cluster.cli_check import print_verdict
from cluster.cli_common import DONE, ERROR, INVALID, JsonOption, note, print_json, print_rows, time_in_words

__all__ = ["replay"]


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A dump, as `up --dump DIR` writes them.")],
    as_json: JsonOption = False,
) -> int:
    """Judges a dumped declaration once more, from nothing but the dump.

    Exits 0 if it is valid, 1 if it is not, 2 if it cannot be judged or the verdict is another than the recorded one.
    """
    from models.dump import replay as judge
    from models.dumpfile import read_dump
    from models.wire.hashes import to_display

    dump = read_dump(file.expanduser())
    verdict = judge(dump, os.cpu_count() or 1)
    facts: dict[str, Any] = {
        "recorded": dump.verdict.to_dict(),
        "same": verdict == dump.verdict,
        "created": dump.created,
        "network": dump.context.network,
        "prevhash": to_display(dump.prevhash),
        "height": dump.context.height,
        "transactions": len(dump.transactions),
        "coins": len(dump.coins),
        "mode": dump.mode,
        "now": dump.now,
    }
    if as_json:
        print_json(verdict.to_dict() | facts)
    else:
        print_verdict(verdict)
        print_rows(
            [
                ("declared", f"{facts['transactions']:,} transactions on {facts['prevhash']} ({dump.context.network})"),
                ("dumped", f"{time_in_words(dump.created)}, with {facts['coins']:,} coins and absences"),
            ]
        )
    if not facts["same"]:
        recorded = dump.verdict
        note(
            f"the recorded verdict is another: {recorded.kind.value} {recorded.reason or ''} {recorded.debug}".rstrip()
        )
        return ERROR
    return DONE if verdict.ok else INVALID
