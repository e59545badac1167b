"""Bitcoin Core's multiprocess interface (Cap'n Proto over a unix socket) in front of a running node: a Stratum V2
server is pointed at our socket instead of Core's and notices no difference, except in speed.

A process of its own, `python -m cluster.ipc`, which `txcollection up --ipc PATH` starts and watches. It holds no state
of the chain: it translates calls into messages to the node's actors, and frees what a client held when that goes away.
"""
