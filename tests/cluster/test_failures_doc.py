"""Every message in docs/failures.md is one that the code has: words in capitals stand for what is filled in."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "failures.md"
SHORTEST = 10  # characters of fixed text, so that `{path}: {error}` does not match everything


def _pattern(node: ast.AST) -> str | None:
    """A regular expression for what a string expression gives; None if it is mostly holes."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    texts = [part.value if isinstance(part, ast.Constant) else None for part in parts]
    if sum(len(text) for text in texts if isinstance(text, str)) < SHORTEST:
        return None
    return "".join(re.escape(text) if isinstance(text, str) else ".+" for text in texts)


def _patterns() -> list[re.Pattern[str]]:
    found = set()
    for package in ("models", "actors", "cluster"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                text = isinstance(node, ast.Constant) and isinstance(node.value, str)
                if (text or isinstance(node, ast.JoinedStr)) and (pattern := _pattern(node)):
                    found.add(pattern)
    return [re.compile(pattern) for pattern in found]


PATTERNS = _patterns()
MESSAGES = [
    line for block in re.findall(r"^```\n(.*?)^```", PAGE.read_text(), re.M | re.S) for line in block.splitlines()
]


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_exists(message: str) -> None:
    assert any(pattern.fullmatch(message) for pattern in PATTERNS), message
