"""Mistakes and malice of clients: Core's words for the first, and a server that others go on using after both."""

import asyncio
import socket
from collections.abc import Callable
from struct import pack
from typing import Any

import capnp
import pytest

from models.wire.block import decode_block
from tests.actors.blocks import TestCoin, coinbase, mine, spend
from tests.cluster.ipc.client import Client, check_options, description, drive, proxy_schema
from tests.cluster.ipc.conftest import ServerProcess
from tests.cluster.ipc.test_calls import MEMPOOL, TIP, internal

EXCEPTION = "remote exception: std::exception: "
END_OF_DATA = EXCEPTION + "SpanReader::read(): end of data: "
SHORT, LONG = bytes(31), bytes(33)
MANY = [spend([TestCoin(bytes([n]) * 32, 0, 10_000)]) for n in range(100)]


def still_serves(server: ServerProcess) -> None:
    async def run() -> int:
        client = await Client.connect(server.path)
        return (await client.mining.getTip(client.context)).result.height

    assert server.alive()
    assert drive(run()) == TIP["height"]


def refusals(calls: Callable[[Client], list[Any]], server: ServerProcess) -> list[str]:
    """The exceptions that calls of one client end with."""

    async def run() -> list[str]:
        client = await Client.connect(server.path)
        return [await description(call) for call in calls(client)]

    return drive(run())


@pytest.mark.parametrize("bad", [SHORT, LONG, b""], ids=["short", "long", "empty"])
def test_hashes_of_another_length(bad: bytes, corpus_server: ServerProcess) -> None:
    good = internal(MEMPOOL[0])

    def calls(client: Client) -> list[Any]:
        mining, context = client.mining, client.context
        collection = mining.collectTxs(context, [good]).result
        return [
            mining.waitTipChanged(context, bad, 1.0),
            mining.getTransactionsByTxID(context, [good, bad]),
            mining.getTransactionsByWitnessID(context, [bad]),
            mining.collectTxs(context, [good, bad]),
            collection.makeTemplate(context, bad, b""),
        ]

    texts = refusals(calls, corpus_server)
    assert all(text.startswith(END_OF_DATA) for text in texts), texts
    still_serves(corpus_server)


def test_lists_that_are_too_long_or_repeat_themselves(corpus_server: ServerProcess) -> None:
    ids = [n.to_bytes(32, "little") for n in range(16_667)]

    def calls(client: Client) -> list[Any]:
        collect = client.mining.collectTxs
        return [collect(client.context, ids), collect(client.context, [ids[1], ids[2], ids[1]])]

    assert refusals(calls, corpus_server) == [
        EXCEPTION + "too many wtxids (16667 > 16666)",
        EXCEPTION + "duplicate wtxid " + "00" * 31 + "01",
    ]


@pytest.mark.parametrize(
    "block",
    [b"", b"\x00", b"garbage" * 100, mine(bytes(32), 5, TIP["time"]).raw[:-15], bytes(80) + b"\xff" * 9],
    ids=["empty", "one byte", "garbage", "truncated", "count beyond its end"],
)
def test_blocks_that_are_none(block: bytes, corpus_server: ServerProcess) -> None:
    def calls(client: Client) -> list[Any]:
        mining, context = client.mining, client.context
        return [mining.checkBlock(context, block), mining.submitBlock(context, block)]

    texts = refusals(calls, corpus_server)
    assert all(text.startswith(END_OF_DATA) for text in texts), texts


def test_a_block_whose_end_is_missing_is_no_block_however_long_it_is(corpus_server: ServerProcess) -> None:
    """More than what is parsed at arrival: found where it would be judged, so Core's text has a word in front of it."""
    block = mine(bytes(32), 5, TIP["time"], MANY).raw

    def calls(client: Client) -> list[Any]:
        return [client.mining.checkBlock(client.context, block[:-15], check_options(pow=False))]

    (text,) = refusals(calls, corpus_server)
    assert "std::exception: SpanReader::read(): end of data: " in text
    assert "Traceback" not in text and ".py" not in text


def test_transactions_that_are_none(corpus_server: ServerProcess) -> None:
    wanted = [tx.txid for tx in MANY]
    stranger = spend([TestCoin(b"\x77" * 32, 7, 10_000)])

    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        context = client.context
        collection = await client.collect(wanted)

        async def add(*raws: bytes) -> str:
            return await description(collection.addMissingTxs(context, list(raws)))

        assert (await add(b"\x00\x01")).startswith(END_OF_DATA)
        assert (await add(MANY[0].raw, MANY[1].raw[:-1])).startswith(END_OF_DATA)
        assert await add(MANY[0].raw, b"") == EXCEPTION + "unexpected null transaction"
        assert await add(stranger.raw) == EXCEPTION + f"unexpected wtxid {stranger.id}"
        assert await add(MANY[0].raw, MANY[0].raw) == EXCEPTION + f"duplicate wtxid {MANY[0].id}"
        assert await add(*[MANY[0].raw] * 101) == EXCEPTION + "too many transactions (101 > 100)"
        text = await add(*[tx.raw for tx in MANY[1:]], b"")  # too many to be parsed at arrival
        assert "std::exception: unexpected null transaction" in text and "Traceback" not in text
        assert list((await collection.unknownTxPos(context)).result) == list(range(100))  # nothing was taken
        await collection.addMissingTxs(context, [tx.raw for tx in MANY[:80]])
        assert list((await collection.unknownTxPos(context)).result) == list(range(80, 100))
        await collection.addMissingTxs(context, [MANY[0].raw, MANY[99].raw])
        assert list((await collection.unknownTxPos(context)).result) == list(range(80, 99))
        text = await description(collection.makeTemplate(context, internal(TIP["hash"]), b"\x01\x02"))
        assert text.startswith(END_OF_DATA)

    drive(run())


def test_more_ids_than_anybody_can_mean(corpus_server: ServerProcess) -> None:
    """They would keep everybody else waiting while they are read."""
    ids = [bytes(32)] * 100_001

    def calls(client: Client) -> list[Any]:
        mining, context = client.mining, client.context
        return [mining.getTransactionsByTxID(context, ids), mining.getTransactionsByWitnessID(context, ids)]

    texts = refusals(calls, corpus_server)
    assert [text.startswith(EXCEPTION + "100001 ") for text in texts] == [True, True]


def test_an_old_client_is_told_so(corpus_server: ServerProcess) -> None:
    texts = refusals(lambda client: [client.init.makeMiningOld2()], corpus_server)
    assert texts == [EXCEPTION + "Old mining interface (@2) not supported. Please update your client!"]


def test_an_object_that_was_destroyed(corpus_server: ServerProcess) -> None:
    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        collection = await client.collect([])
        await collection.destroy(client.context)
        await collection.destroy(client.context)
        text = await description(collection.unknownTxPos(client.context))
        assert "std::exception: this object was destroyed" in text

    drive(run())


def test_a_thread_of_the_clients_own(corpus_server: ServerProcess) -> None:
    class Foreign(proxy_schema.Thread.Server):
        async def getName_context(self, context: Any) -> None:
            context.results.result = "mine"

    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        context = {"thread": Foreign()}
        text = await description(client.mining.getTip(context))
        assert "std::exception: invalid thread handle" in text and "Traceback" not in text

    drive(run())


def test_more_calls_than_a_client_may_have_waiting(corpus_server: ServerProcess) -> None:
    tip = internal(TIP["hash"])

    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        waits = [asyncio.ensure_future(client.mining.waitTipChanged(client.thread(), tip)) for _ in range(64)]
        await client.init.construct()
        while True:  # until all of them have arrived
            try:
                await client.mining.getTip(client.context)
            except capnp.KjException as error:
                assert error.description == EXCEPTION + (
                    "64 calls of this client wait for an answer, the most that are allowed"
                )
                break
        await client.mining.interrupt()
        await asyncio.wait_for(asyncio.gather(*waits), 30)
        assert (await client.mining.getTip(client.context)).hasResult

    drive(run())


def test_more_collections_than_a_client_may_have(corpus_server: ServerProcess) -> None:
    async def run() -> None:
        client = await Client.connect(corpus_server.path)
        held = [await client.collect([]) for _ in range(64)]
        text = await description(client.mining.collectTxs(client.context, []))
        assert "std::exception: 64 collections of this client are open, the most that are allowed" in text
        await held.pop().destroy(client.context)
        await client.collect([])

    drive(run())


class Raw:
    """A connection that speaks no Cap'n Proto."""

    def __init__(self, server: ServerProcess) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(str(server.path))

    def is_ended_after(self, data: bytes) -> bool:
        self.socket.sendall(data)
        try:
            while self.socket.recv(4096):
                pass
        except ConnectionResetError:
            pass
        self.socket.close()
        return True


def frame(segments: list[int], data: bytes) -> bytes:
    """A message's table of segments (sizes in words) and what follows."""
    table = pack("<I", len(segments) - 1) + b"".join(pack("<I", size) for size in segments)
    return table + bytes(-len(table) % 8) + data


@pytest.mark.parametrize(
    "message",
    [
        frame([8 * 1024 * 1024 + 1], bytes(4096)),
        frame([2**32 - 1], b""),
        frame([1] * 600, bytes(600 * 8)),
        b"\xff" * 4096,
        b"GET / HTTP/1.1\r\n\r\n" * 20,
    ],
    ids=["over 64 MiB", "32 GiB", "many segments", "ones", "HTTP"],
)
def test_a_message_that_is_none_ends_its_connection_only(message: bytes, corpus_server: ServerProcess) -> None:
    assert Raw(corpus_server).is_ended_after(message)
    still_serves(corpus_server)


def test_half_a_message_and_silence(corpus_server: ServerProcess) -> None:
    """One that hangs up in the middle, and one that stays: neither keeps others from being served."""
    for stays in (False, True):
        raw = Raw(corpus_server)
        raw.socket.sendall(frame([100], bytes(400)))
        if not stays:
            raw.socket.close()
        still_serves(corpus_server)
        raw.socket.close()
    still_serves(corpus_server)


def test_a_method_that_is_not_there(corpus_server: ServerProcess) -> None:
    """A newer client, which has methods that we have not, is told so and goes on."""
    parser = capnp.SchemaParser()
    newer = parser.load(str(newer_schema(corpus_server)))

    async def run() -> None:
        stream = await capnp.AsyncIoStream.create_unix_connection(str(corpus_server.path))
        init = capnp.TwoPartyClient(stream).bootstrap().cast_as(newer.Init)
        with pytest.raises(capnp.KjException) as refused:
            await init.makeTomorrow()
        assert refused.value.type == "UNIMPLEMENTED"
        assert (await init.construct())._has("threadMap")

    drive(run())


def newer_schema(server: ServerProcess) -> Any:
    """`Init` with one method more."""
    path = server.path.parent / "newer.capnp"
    path.write_text(
        "@0xf2c5cfa319406aa6;\n"
        "interface Any {}\n"
        "interface Init {\n"
        "  construct @0 () -> (threadMap :Any);\n"
        + "".join(f"  unused{n} @{n} () -> ();\n" for n in range(1, 50))
        + "  makeTomorrow @50 () -> ();\n"
        "}\n"
    )
    return path


def test_blocks_of_other_shapes_do_not_disturb_what_is_declared(corpus_server: ServerProcess, corpus_node: Any) -> None:
    """After a list was asked about, blocks that are not made of it are judged like any other."""
    wtxids = [internal(wtxid) for wtxid in MEMPOOL[:4]]
    raws = corpus_node.transactions(MEMPOOL[:4])
    first = coinbase(TIP["height"] + 1)
    head = mine(internal(TIP["hash"]), TIP["height"] + 1, TIP["time"] + 1).raw[:80]
    blocks = {
        "declared": [first.raw, *raws],
        "other order": [first.raw, raws[0], raws[2], raws[1], raws[3]],
        "shorter": [first.raw, *raws[:3]],
        "one another": [first.raw, *raws[:3], corpus_node.transactions([MEMPOOL[5]])[0]],
        "trailing bytes": [first.raw, *raws, b"trailing"],
        "truncated": [first.raw, *raws[:3], raws[3][:-4]],
    }

    async def run() -> dict[str, Any]:
        client = await Client.connect(corpus_server.path)
        answers: dict[str, Any] = {}
        await client.mining.getTransactionsByWitnessID(client.context, wtxids)
        for name, parts in blocks.items():
            count = len(parts) - (name == "trailing bytes")
            raw = head + bytes([count]) + b"".join(parts)
            try:
                answer = await client.mining.checkBlock(client.context, raw, check_options(False, False))
                answers[name] = (raw, (answer.reason, answer.debug))
            except capnp.KjException as error:
                answers[name] = (raw, error.description)
        return answers

    for name, (raw, answer) in drive(run()).items():
        if name == "truncated":
            assert answer.startswith(END_OF_DATA)
            continue
        verdict = corpus_node.check_block(raw, check_merkle_root=False, now=TIP["now"])
        assert answer == (verdict.reason or "", verdict.debug), name
        assert len(decode_block(raw).transactions) == (4 if name == "shorter" else 5)
