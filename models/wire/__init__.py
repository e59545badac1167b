"""Bytes as they cross the peer-to-peer network: transactions, blocks, headers, hashes, merkle trees. Pure functions on
bytes; no consensus rule beyond what deserialisation itself refuses.
"""
