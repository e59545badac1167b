"""The server's process as its parent sees it: started once a node is up, watched, started again if it dies."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from models.errors import StoreError

__all__ = ["IpcProcess", "ipc_process"]

STOP_PATIENCE = 10.0  # seconds
AGAIN_AFTER = 5.0  # seconds between attempts to start one that died


class IpcProcess:
    """`python -m cluster.ipc` for one store, in a session of its own: a Ctrl-C reaches its parent, which ends it."""

    def __init__(self, store: Path, socket: Path, options: Mapping[str, object]):
        """`options` are further ones of the command line by their names; those that are None are left out."""
        self._command = [sys.executable, "-m", "cluster.ipc", "--store", str(store), "--socket", str(socket)]
        self._command.append("--with-parent")
        for name, value in options.items():
            if value is not None:
                self._command += [f"--{name}", str(value)]
        self._process: subprocess.Popen[str] | None = None
        self._failed = 0.0

    @property
    def pid(self) -> int | None:
        """Of the process that runs, if one does."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Returns when it listens. Raises StoreError with its own words if it does not."""
        process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._process = process
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        if said.startswith("listening"):
            return
        process.wait(STOP_PATIENCE)
        raise StoreError(said.removeprefix("error: ") or f"the IPC server ended with code {process.returncode}")

    def look(self, say: Callable[[str], None]) -> None:
        """Starts it again if it has ended; `say` tells the user. To be called again and again."""
        if self.pid is not None or time.monotonic() < self._failed + AGAIN_AFTER:
            return
        code = self._process.returncode if self._process is not None else 0
        say(f"the IPC server has ended (code {code}): starting it again")
        try:
            self.start()
        except StoreError as error:
            say(f"the IPC server does not start: {error}")
            self._failed = time.monotonic()

    def stop(self) -> None:
        """Ends it. Harmless to repeat."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def ipc_process(store: Path, socket: Path | None, options: Mapping[str, object]) -> Iterator[IpcProcess | None]:
    """Runs one as long as the block lasts; none without a socket."""
    if socket is None:
        yield None
        return
    process = IpcProcess(store, socket, options)
    try:
        process.start()
        yield process
    finally:
        process.stop()
