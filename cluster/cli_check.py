"""`propose` and `collect`: blocks and declarations from files or pipes, answered by the node that serves the store."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from rich.text import Text

from cluster.cli_answers import (
    HowToCheck,
    answer_collection,
    answer_proposal,
    block_of_hex,
    check_proposal,
    error_answer,
    parse_line,
)
from cluster.cli_common import (
    DONE,
    ERROR,
    INVALID,
    ConfigOption,
    JsonOption,
    NowOption,
    ScriptModeOption,
    StoreOption,
    node_for_command,
    open_input,
    print_json,
    print_rows,
    settings_of,
    stdout,
)
from models.errors import ClientError, DecodeError

if TYPE_CHECKING:
    from models.consensus.verdict import Verdict

__all__ = ["collect", "propose"]

# A block has at most 4,000,000 bytes and a line of `collect` at most twice that in transactions; hex doubles it. What
# is longer is refused before it fills the memory.
MAX_LINE = 64_000_000  # bytes

ProposeSource = Annotated[
    str,
    typer.Argument(metavar="FILE|-", help="A block as hex, or with --jsonl one object per line; - is standard input."),
]
CollectSource = Annotated[str, typer.Argument(metavar="FILE|-", help="One object per line; - is standard input.")]


def _lines(stream: BinaryIO) -> Iterator[bytes | ClientError]:
    """The lines that are not blank; one that is too long is read to its end in pieces and becomes an error."""
    while line := stream.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            while line and not line.endswith(b"\n"):
                line = stream.readline(MAX_LINE)
            yield ClientError(f"the line is longer than {MAX_LINE} bytes")
        elif line.strip():
            yield line


def _answer_lines(stream: BinaryIO, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """One answer line per input line, in order, each printed as soon as it is known; the worst exit code of all."""
    worst = DONE
    for line in _lines(stream):
        try:
            if isinstance(line, ClientError):
                raise line
            result = answer(parse_line(line))
        except ClientError as error:
            result = {"name": None, "error": error_answer(error)}
        print_json(result)
        code = ERROR if "error" in result else DONE if result["ok"] else INVALID
        worst = max(worst, code)
    return worst


def _read_block(stream: BinaryIO) -> bytes:
    text = stream.read(MAX_LINE + 1)
    if len(text) > MAX_LINE:
        raise DecodeError(f"the block is longer than {MAX_LINE} hex digits")
    return block_of_hex(text.decode("latin-1").strip())


def print_verdict(verdict: "Verdict") -> None:
    """A verdict for people: valid or not, why, and who."""
    if verdict.ok:
        stdout().print(Text("valid", style="bold green"))
        return
    rows = [(verdict.kind.value, verdict.reason or "")]
    if verdict.debug:
        rows.append(("detail", verdict.debug))
    if verdict.offender:
        who = verdict.offender
        rows += [("transaction", f"{who.position} in the block"), ("txid", who.txid), ("wtxid", who.wtxid)]
        if who.input is not None:
            rows.append(("input", str(who.input)))
    print_rows(rows)


def propose(
    source: ProposeSource,
    jsonl: Annotated[bool, typer.Option("--jsonl", help='Read lines of {"name", "block"}, answer each.')] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    script_mode: ScriptModeOption = None,
    now: NowOption = None,
    as_json: JsonOption = False,
) -> int:
    """Says what Bitcoin Core would say to a proposed block: all checks but the proof of work.

    Exits 0 if it is valid, 1 if it is not, 2 if it could not be checked. With --jsonl the worst of its lines counts.
    """
    settings = settings_of(store=store, config=config, script_mode=script_mode, now=now)
    how = HowToCheck(now, script_mode)
    with open_input(source) as stream:
        if jsonl:
            with node_for_command(settings) as node:
                return _answer_lines(stream, lambda request: answer_proposal(node, request, how))
        try:
            raw = _read_block(stream)
            with node_for_command(settings) as node:
                verdict = check_proposal(node, raw, how)
        except DecodeError as error:
            raise DecodeError(f"Block decode failed: {error}") from None
    if as_json:
        print_json(verdict.to_dict())
    else:
        print_verdict(verdict)
    return DONE if verdict.ok else INVALID


def collect(
    source: CollectSource,
    store: StoreOption = None,
    config: ConfigOption = None,
    script_mode: ScriptModeOption = None,
    now: NowOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answers are lines of JSON in any case.")] = False,
) -> int:
    """Runs job declarations and gives the verdict on each.

    A line has {"name", "wtxids", "coinbase", "prevhash", "supply"}; supply is a list of calls, each a list of
    transactions as hex. It is answered with the unknown positions, the error of each call, and the verdict on the
    block. Exits 0 if all are valid, 1 if one is not, 2 if one could not be checked.
    """
    settings = settings_of(store=store, config=config, script_mode=script_mode, now=now)
    how = HowToCheck(now, script_mode)
    with open_input(source) as stream, node_for_command(settings) as node:
        return _answer_lines(stream, lambda request: answer_collection(node, request, how))
