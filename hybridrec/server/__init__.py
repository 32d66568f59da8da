"""Embedding servers: rows of tables in processes of their own, and what trainers say to them.

Nothing that a server imports imports torch. `shard.py` has all rules and knows no network; `process.py` is a server;
`client.py` is the way to all of them.
"""
