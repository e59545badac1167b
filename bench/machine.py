"""What a figure was measured on: processor, memory, disk, kernel, versions. No host names and no paths."""

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.disk import mount_of, read_ahead_kb

__all__ = ["machine_facts", "memory_bytes", "versions"]

PACKAGES = ("txcollection", "ray", "plyvel", "rocksdict", "py-bitcoinkernel", "numpy", "pyzmq", "msgpack", "pydantic")


def _first_match(path: str, name: str) -> str | None:
    try:
        for line in Path(path).read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    except OSError:
        pass
    return None


def memory_bytes() -> int | None:
    """Physical memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _rotational(device: str) -> bool | None:
    for place in (f"/sys/dev/block/{device}/queue/rotational", f"/sys/dev/block/{device}/../queue/rotational"):
        try:
            return Path(place).read_text().strip() == "1"
        except OSError:
            continue
    return None


def machine_facts(directory: Path) -> dict[str, Any]:
    """Facts of this machine and of the disk under `directory`, for the report."""
    mount = mount_of(directory)
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    return {
        "cpu": _first_match("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "load_average_before": None if load is None else [round(value, 2) for value in load],
        "system": platform.system(),
        "kernel": platform.release(),
        "file_system": mount.kind if mount else None,
        "rotational": _rotational(mount.device) if mount else None,
        "read_ahead_kb": read_ahead_kb(directory),
        "disk_bytes": shutil.disk_usage(directory).total,
    }


def versions() -> dict[str, str]:
    """Versions of Python and of what the figures depend on."""
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
