"""The JSON form of a run, and where runs are kept: `DIR/results/<command>-<fixture>.json`, the latest of each."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.fixtures import Fixture
from bench.machine import machine_facts, versions
from models.storage.durable import write_atomic

__all__ = ["document", "keep", "kept"]


def document(command: str, fixture: Fixture | None, directory: Path, body: Mapping[str, Any]) -> dict[str, Any]:
    """A run with what it was measured on. No host name and no path is in it."""
    return {
        "bench": command,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": machine_facts(directory),
        "versions": versions(),
        "fixture": fixture.manifest if fixture else None,
        **body,
    }


def _place(directory: Path, command: str, fixture: str) -> Path:
    return directory / "results" / f"{command}-{fixture}.json"


def keep(directory: Path, command: str, fixture: str, run: Mapping[str, Any], file: Path | None = None) -> Path:
    """Writes a run to its place, and to `file` if there is one; where it lies."""
    place = _place(directory, command, fixture)
    place.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(run, indent=1).encode() + b"\n"
    write_atomic(place, text)
    if file is not None:
        file.write_bytes(text)
    return place


def kept(directory: Path, command: str, fixture: str) -> dict[str, Any] | None:
    """The latest run of a command on a fixture, None if there is none."""
    try:
        return json.loads(_place(directory, command, fixture).read_text())
    except (OSError, ValueError):
        return None
