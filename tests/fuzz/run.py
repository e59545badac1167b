"""Coverage-guided fuzzing of the targets with atheris: `python -m tests.fuzz.run NAME [--seconds N] [--runs N]`.

Begins with the kept seeds. New inputs that reach new code, and crashes, go to `tests/fuzz/found/`, which is no part of
the repository; the next run goes on from there. `all` runs every target in a process of its own, one after the other,
prints how many inputs each executed and what it crashed on, and fails if anything did.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import atheris

FOUND = Path(__file__).parent / "found"
LONGEST_INPUT = 4096  # bytes
LONGEST_TIME = 10  # seconds for one input; more counts as a crash
MOST_MEMORY = 2048  # MiB

with atheris.instrument_imports(include=["models", "cluster"], enable_loader_override=False):
    from tests.fuzz.targets import CORPUS, TARGETS


def fuzz(name: str, seconds: int, runs: int) -> None:
    """Runs one target in this process, which ends with it."""
    new, crashes = FOUND / name, FOUND / "crashes"
    for folder in (new, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    run = TARGETS[name].run
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={seconds}",
            f"-runs={runs}",
            f"-max_len={LONGEST_INPUT}",
            f"-timeout={LONGEST_TIME}",
            f"-rss_limit_mb={MOST_MEMORY}",
            f"-artifact_prefix={crashes}/{name}-",
            "-print_final_stats=1",
            "-verbosity=1",
            str(new),
            str(CORPUS / name),
        ],
        lambda data: run(data) and None,
    )
    atheris.Fuzz()


def fuzz_all(seconds: int, runs: int) -> int:
    """Every target for so many seconds; the number of targets with a crash."""
    executions = crashed = 0
    for name in TARGETS:
        command = [sys.executable, "-m", "tests.fuzz.run", name, "--seconds", str(seconds), "--runs", str(runs)]
        with tempfile.TemporaryDirectory() as scratch:  # libFuzzer ends the process without any cleaning up
            where = {**os.environ, "TMPDIR": scratch}
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=where)
        found = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
        count = int(found[1]) if found else 0
        executions += count
        bad = done.returncode != 0
        crashed += bad
        print(f"{name:20} {count:10,} executions   {'CRASHED' if bad else '0 crashes'}", flush=True)
        if bad:
            print(done.stdout[-3000:], done.stderr[-1500:], sep="\n", flush=True)
    print(f"{len(TARGETS)} targets, {executions:,} executions, {crashed} crashed")
    return crashed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=["all", *TARGETS])
    parser.add_argument("--seconds", type=int, default=30, help="of each target")
    parser.add_argument("--runs", type=int, default=-1, help="inputs of each target at most")
    options = parser.parse_args()
    if options.name == "all":
        sys.exit(fuzz_all(options.seconds, options.runs) > 0)
    fuzz(options.name, options.seconds, options.runs)


if __name__ == "__main__":
    main()
