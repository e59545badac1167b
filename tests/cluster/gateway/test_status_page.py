"""The status page in a browser: it shows the node's figures, refreshes them, and says when nobody answers.

Skipped where Chromium is not installed.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.gateway.conftest import Connection, Served
from tests.cluster.gateway.test_collections import VALID

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed (Debian: apt-get install chromium)")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=4000",
]


def dom_of(url: str, profile: Path) -> str:
    """The page's elements after some seconds of the browser's own time."""
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", "--enable-logging=stderr", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert "Refused to" not in done.stderr, "the page breaks its own content policy"
    assert "Uncaught" not in done.stderr
    return done.stdout


def text_of(dom: str, element: str) -> str:
    found = re.search(rf'id="{element}"[^>]*>(.*?)</(?:div|span|p|tbody|ul|dl|footer)>\s', dom, re.DOTALL)
    assert found, f"no element {element}"
    return re.sub(r"<[^>]+>", " ", found[1]).strip()


def test_page_shows_the_figures(served: Served, connection: Connection, tmp_path: Path) -> None:
    collection = connection.call("collecttxs", VALID["wtxids"])["collection"]
    missing = [raw for supply in VALID["supply"] for raw in supply]
    connection.call("maketemplate", collection, VALID["prevhash"], VALID["coinbase"], missing)
    dom = dom_of(served.gateway.url + "/", tmp_path)
    assert 'data-ready="yes"' in dom
    assert text_of(dom, "health") == "healthy"
    assert text_of(dom, "height") == "125"
    assert text_of(dom, "hash") == connection.call("getbestblockhash")
    assert text_of(dom, "network") == "regtest"
    assert int(text_of(dom, "open").split()[0]) >= 1
    assert text_of(dom, "mempool") == str(connection.call("getmempoolinfo")["size"])
    workers = text_of(dom, "workers")
    assert all(kind in workers for kind in ("chainstate-", "mempool-", "fetch-", "script-", "template-", "gateway-"))
    assert "valid" in text_of(dom, "verdicts")
    assert dom.count("<rect") == 19, "one bar for each bucket"
    assert re.search(r"Histogram of times: maketemplate, from request to answer\. calls [1-9]", dom)
    connection.call("closecollection", collection)


def test_page_says_when_something_is_wrong(tmp_path: Path, nobody: Served) -> None:
    dom = dom_of(nobody.gateway.url + "/", tmp_path)
    assert text_of(dom, "health") == "2 problems"
    assert "the node&#39;s actors do not answer" in dom or "the node's actors do not answer" in dom
    assert text_of(dom, "height") == "unknown"
