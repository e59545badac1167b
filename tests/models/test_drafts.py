"""What the validating side is told of a declaration, as bytes of one message."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.drafts import Op, pack_ops, unpack_ops

ARRAYS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1)).map(lambda values: np.array(values, np.int64)),
    st.lists(st.integers(-(2**31), 2**31 - 1)).map(lambda values: np.array(values, np.int32)),
    st.binary().map(lambda data: np.frombuffer(data, np.uint8)),
    st.lists(st.booleans()).map(lambda values: np.array(values, bool)),
)


@given(ARRAYS, ARRAYS, st.binary(max_size=40), st.integers(0, 2**63))
def test_ops_come_back_as_they_were(positions: np.ndarray, data: np.ndarray, blob: bytes, number: int) -> None:
    ops: list[Op] = [
        ("open", blob),
        ("add", positions, {"rows": data, "raws": data}, positions, [(0, 1, np.int32(7))]),
        ("tip", (1, number), 5),
        ("add", positions, None, data, []),
    ]
    opened, added, tip, attached = unpack_ops(pack_ops(ops))
    assert opened == ("open", blob)
    assert tip == ("tip", (1, number), 5)
    kind, first, columns, source, rewires = added
    assert (kind, rewires) == ("add", ((0, 1, 7),))
    assert set(columns) == {"rows", "raws"}
    for got, given_ in ((first, positions), (columns["rows"], data), (columns["raws"], data), (source, positions)):
        assert got.dtype == given_.dtype
        assert np.array_equal(got, given_)
    assert attached[2] is None
    assert np.array_equal(attached[3], data)
