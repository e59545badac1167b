"""A long run of everything at once: a node is followed, clients declare, floods come and processes are killed, while
every verdict is compared with a plain check. `make soak`, or `python -m tests.soak --help`.
"""
