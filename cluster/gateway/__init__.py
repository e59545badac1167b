"""JSON-RPC over HTTP for clients of other processes, as Bitcoin Core's users know it, beside pages for operators.

`start_gateway` starts it on a running node. It is an actor of its own and talks to the others by messages only.
"""
