"""Every RPC method by name, and those about the gateway itself."""

import time

from cluster.gateway.arguments import Method, Parameter
from cluster.gateway.calls import Call
from cluster.gateway.chain_methods import CHAIN_METHODS
from cluster.gateway.collection_methods import COLLECTION_METHODS

__all__ = ["METHODS"]


async def help_(_call: Call, command: str | None) -> str:
    """The list of methods, or all about one."""
    if command is None:
        return "\n".join(METHODS[name].usage for name in sorted(METHODS))
    method = METHODS.get(command)
    return method.help if method else f"help: unknown command: {command}\n"


async def stop(call: Call) -> str:
    """Ends the node; the answer comes first."""
    call.house.stop()
    return "txcollection stopping"


async def uptime(call: Call) -> int:
    """Seconds since the node was started."""
    return int(time.time() - call.house.started)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        *CHAIN_METHODS,
        *COLLECTION_METHODS,
        Method(
            "help",
            help_,
            "Lists all methods, or explains one.",
            (Parameter("command", "string", "the method to explain", required=False),),
        ),
        Method("stop", stop, "Ends the node."),
        Method("uptime", uptime, "Seconds since the node was started."),
    )
}
