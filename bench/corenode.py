"""A Bitcoin Core node of our own, started on loopback in a directory that goes with it, and asked over RPC. It gets the
fixture's chain block by block, so that it builds its own files.
"""

import base64
import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.errors import BenchError

__all__ = ["CoreNode", "core_node"]

START_PATIENCE = 60.0  # seconds
STOP_PATIENCE = 60.0
CALL_PATIENCE = 120.0
LOOK_EVERY = 0.1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class CoreNode:
    """One process at a time on one data directory; regtest, no peers, its clock set to `now` (Unix seconds)."""

    def __init__(self, program: Path, datadir: Path, now: int):
        self._program = program
        self._datadir = datadir
        self._now = now
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._headers: dict[str, str] = {}

    def start(self) -> None:
        """Returns when it answers. Raises BenchError with its last words if it ends instead."""
        self._port = _free_port()
        arguments = [
            str(self._program),
            "-regtest",
            f"-datadir={self._datadir}",
            "-server",
            "-listen=0",
            "-dnsseed=0",
            "-connect=0",
            "-persistmempool=0",
            "-rpcbind=127.0.0.1",
            "-rpcallowip=127.0.0.1",
            f"-rpcport={self._port}",
            f"-mocktime={self._now}",
        ]
        try:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise BenchError(f"BITCOIND={self._program} cannot be started: {error.strerror}") from error
        limit = time.monotonic() + START_PATIENCE
        while time.monotonic() < limit:
            if self._process.poll() is not None:
                raise BenchError(
                    f"BITCOIND={self._program} ended with {self._process.returncode}: {self._last_words()}"
                )
            try:
                cookie = (self._datadir / "regtest" / ".cookie").read_bytes()
                self._headers = {"Authorization": "Basic " + base64.b64encode(cookie).decode()}
                self.call("getblockcount")
                return
            except (OSError, http.client.HTTPException, BenchError):
                time.sleep(LOOK_EVERY)
        self.stop()
        raise BenchError(f"BITCOIND={self._program} did not answer within {START_PATIENCE:g} s")

    def _last_words(self) -> str:
        process = self._process
        text = process.stderr.read().decode("utf-8", "replace") if process and process.stderr else ""
        return " ".join(text.split())[-300:] or "it said nothing"

    def stop(self) -> None:
        """Ends it, politely first. Harmless when it is not running."""
        process = self._process
        self._process = None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stderr:
            process.stderr.close()

    def call(self, method: str, *params: Any) -> Any:
        """The result of one RPC call. Raises BenchError with the node's message."""
        return self.send(self.prepare(method, *params))

    @staticmethod
    def prepare(method: str, *params: Any) -> bytes:
        """A request's body, so that writing megabytes of hex is no part of what is timed."""
        return json.dumps({"jsonrpc": "1.0", "id": 0, "method": method, "params": params}).encode()

    def send(self, body: bytes) -> Any:
        """The result of a prepared call."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=CALL_PATIENCE)
        try:
            connection.request("POST", "/", body, self._headers)
            answer = json.loads(connection.getresponse().read())
        except ValueError as error:
            raise BenchError(f"the node's answer is no JSON: {error}") from error
        finally:
            connection.close()
        if answer.get("error"):
            raise BenchError(f"the node answered {answer['error']}")
        return answer["result"]

    def version(self) -> str:
        """As the node names itself."""
        return str(self.call("getnetworkinfo")["subversion"]).strip("/")


@contextmanager
def core_node(program: Path, datadir: Path, now: int) -> Iterator[CoreNode]:
    """A node that is running, and has ended when the context ends."""
    datadir.mkdir(parents=True)
    node = CoreNode(program, datadir, now)
    try:
        node.start()
        yield node
    finally:
        node.stop()
