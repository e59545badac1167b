"""A stand-in for a node's program, for tests of the bench where Bitcoin Core is not installed: it takes the same
arguments, writes a cookie, and answers the calls that the bench makes. It judges nothing.

It keeps the chain that it was given in its data directory, so that it survives being started anew.
"""

import base64
import json
import secrets
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from models.wire.block import BlockHeader, decode_block
from models.wire.hashes import to_display

OPTIONS = dict(argument.lstrip("-").partition("=")[::2] for argument in sys.argv[1:])
DATADIR = Path(OPTIONS["datadir"]) / "regtest"
CHAIN = DATADIR / "chain"
COOKIE = f"__cookie__:{secrets.token_hex(16)}"


def _answer(method: str, params: list[Any]) -> Any:
    tips = CHAIN.read_text().split() if CHAIN.exists() else []
    if method == "getblockcount":
        return len(tips)
    if method == "getbestblockhash":
        return tips[-1]
    if method == "getnetworkinfo":
        return {"subversion": "/StandIn:1.0/"}
    if method == "submitblock":
        block_hash = to_display(BlockHeader.parse(bytes.fromhex(params[0])).hash)
        with CHAIN.open("a") as chain:
            chain.write(block_hash + "\n")
        return None
    if method == "getblocktemplate" and params[0]["mode"] == "proposal":
        header = decode_block(bytes.fromhex(params[0]["data"])).header
        return None if to_display(header.prev_hash) == tips[-1] else "inconclusive-not-best-prevblk"
    raise ValueError(method)


class Handler(BaseHTTPRequestHandler):
    """JSON-RPC with the cookie's password."""

    def do_POST(self) -> None:
        """One call."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wanted = "Basic " + base64.b64encode(COOKIE.encode()).decode()
        if self.headers["Authorization"] != wanted:
            self.send_response(401)
            self.end_headers()
            return
        body = json.dumps({"result": _answer(request["method"], request["params"]), "error": None}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


DATADIR.mkdir(exist_ok=True)
(DATADIR / ".cookie").write_text(COOKIE)
HTTPServer(("127.0.0.1", int(OPTIONS["rpcport"])), Handler).serve_forever()
