"""What a bench refuses, as errors that the command line prints in one line."""

from models.errors import TxCollectionError

__all__ = ["BenchError", "RefusedSample"]


class BenchError(TxCollectionError):
    """A bench that cannot be run as asked: what is in the way, with what value, and what to do."""


class RefusedSample(BenchError):
    """A sample whose verdict was not valid, or whose block was not the fixture's: it is counted, and not reported."""
