"""Double SHA-256 and the display form of hashes."""

import pytest

from models.errors import ClientError
from models.wire.hashes import from_display, sha256d, to_display

GENESIS_HEADER = bytes.fromhex(
    "0100000000000000000000000000000000000000000000000000000000000000000000003ba3edfd7a7b12b27ac72c3e67768f61"
    "7fc81bc3888a51323a9fb8aa4b1e5e4a29ab5f49ffff001d1dac2b7c"
)
GENESIS_HASH = "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f"


def test_the_hash_of_mainnets_first_header() -> None:
    assert to_display(sha256d(GENESIS_HEADER)) == GENESIS_HASH


def test_display_hex_is_the_bytes_reversed() -> None:
    assert from_display("01" + "00" * 30 + "ff") == b"\xff" + bytes(30) + b"\x01"
    assert from_display(GENESIS_HASH.upper()) == from_display(GENESIS_HASH)


@pytest.mark.parametrize(
    "text",
    ["", "00", "0" * 63, "0" * 65, "g" * 64, " " + "0" * 63, "0" * 64 + "\n", "0x" + "0" * 62, "\u0660" * 64, None, 7],
)
def test_anything_else_is_a_client_error_that_names_it(text: object) -> None:
    with pytest.raises(ClientError, match="wtxid must be hexadecimal"):
        from_display(text, "wtxid")  # type: ignore[arg-type]


def test_a_long_text_is_not_repeated_in_full() -> None:
    with pytest.raises(ClientError) as caught:
        from_display("f" * 1_000_000)
    assert len(str(caught.value)) < 250
    assert "1000000" in str(caught.value)
