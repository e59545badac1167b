"""Every shell example of `docs/api-rpc.md`, run in one shell against a live gateway; each answer has the fields and
types of the one that is printed below the example.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.gateway.conftest import Connection, Served

DOCS = Path(__file__).parents[3] / "docs" / "api-rpc.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
END = "=== end of example ==="


def examples() -> list[tuple[str, Any]]:
    """(shell lines, the answer printed below them or None), in order."""
    found: list[tuple[str, Any]] = []
    for language, text in BLOCK.findall(DOCS.read_text(encoding="utf-8")):
        if language == "sh":
            found.append((text, None))
        elif language == "json":
            found[-1] = (found[-1][0], json.loads(text))
    return found


def shape(value: Any) -> Any:
    """Names of fields and kinds of values; of a list, its first entry."""
    if isinstance(value, dict):
        return {key: shape(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [shape(entry) for entry in value[:1]]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_example_is_answered_as_printed(served: Served, tmp_path: Path) -> None:
    shown = examples()
    script = "set -e -o pipefail\n" + "".join(f"{text}echo '{END}'\n" for text, _ in shown)
    script = re.sub(r"^URL=.*$", f"URL={served.gateway.url}", script, flags=re.MULTILINE)
    script = re.sub(r"^STORE=.*$", f"STORE={served.node.store}", script, flags=re.MULTILINE)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    outputs = done.stdout.split(END)
    assert len(outputs) == len(shown) + 1
    compared = 0
    for (text, expected), output in zip(shown, outputs, strict=False):
        if expected is None:
            continue
        answer = json.loads(output)
        assert shape(answer) == shape(expected), f"{text}\n{output}"
        compared += 1
        if isinstance(expected, dict) and expected.get("error"):
            assert answer["error"] == expected["error"]
    assert compared >= 12


def test_every_method_and_metric_is_there(connection: Connection) -> None:
    text = DOCS.read_text(encoding="utf-8")
    methods = [line.split()[0] for line in connection.call("help").splitlines()]
    assert [name for name in methods if f"`{name}`" not in text and f"rpc {name}" not in text] == []
    exposed = connection.get("/metrics").body.decode()
    named = set(re.findall(r"`(txcollection_[a-z_]+)", text.split("Metrics that matter most")[1]))
    missing = {name for name in named if name not in exposed} - {"txcollection_followed_height"}
    assert missing == set()
