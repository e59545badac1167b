"""Starting, joining and using a node: settings, the client facade for notebooks, the command line, the gateways.

`from cluster import Cluster` is the public API. Importing this package sets Ray's environment first, so that every
socket of an embedded Ray is on loopback and its usage reports are off; ray itself is imported when a node is needed.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
if "ray" not in sys.modules and (Path.home() / ".ray" / "auth_token").is_file():
    # Joining a Ray by its address takes the token of this user, which Ray looks for by itself only elsewhere. Where Ray
    # was imported before, it is too late: one that it starts would ask for a token that it does not send.
    os.environ.setdefault("RAY_AUTH_MODE", "token")

if TYPE_CHECKING:
    from cluster.client import Cluster, Collection, Template

__all__ = ["Cluster", "Collection", "Template"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from cluster import client

        return getattr(client, name)
    raise AttributeError(f"module 'cluster' has no attribute '{name}'")
