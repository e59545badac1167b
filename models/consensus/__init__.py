"""The rules: chain parameters, the ordered checks of Core with their reasons, and what a header must be on a given tip.
Every rule stands in one place and works on columns, for one late transaction as for a whole block.
"""
