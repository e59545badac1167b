"""Ray actors and nothing else: each receives a message, calls the domain object of `models` that it holds, and answers.

Waiting goes one way: client, collection, template, then fetch, script, chainstate. Messages about the tip go the other
way and are not waited for. No actor is restarted and no call retried by Ray; the supervisor puts spares in.
"""
