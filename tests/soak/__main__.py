"""`python -m tests.soak`: a run of some minutes, or of hours. Exits 1 if anything went wrong."""

import argparse
import json
import sys
from pathlib import Path

import ray
from rich.console import Console

from cluster.runtime import ensure_ray
from tests.soak.report import show
from tests.soak.run import Plan, soak


def main() -> int:
    """Runs it and prints what it found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.5, help="how long clients, floods and kills go on")
    parser.add_argument("--seed", type=int, default=1, help="what happens, and when")
    parser.add_argument("--clients", type=int, default=4, help="clients that declare, besides those of other kinds")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    console = Console()
    console.print(f"{arguments.minutes:g} minutes, seed {arguments.seed} ...")
    ensure_ray("local", 512 << 20)
    try:
        tally = soak(Plan(seconds=arguments.minutes * 60, seed=arguments.seed, clients=arguments.clients))
    except KeyboardInterrupt:
        console.print("interrupted")
        return 2
    finally:
        ray.shutdown()
    show(tally, console)
    if arguments.json:
        arguments.json.write_text(json.dumps(tally.to_dict(), indent=1))
    return 1 if tally.failures() else 0


if __name__ == "__main__":
    sys.exit(main())
