"""Responses under their ids: whose they are, how long they stay, and what a restart finds."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.responses.kept.records import Packed, Record, made_id
from server.responses.kept.store import ResponseStore

ROOM = 1 << 20


def rid(n: int) -> str:
    return f"resp_{n:032x}"


def out(n: int) -> str:
    """The id of the item that response ``n`` made."""
    return made_id("msg", rid(n), 0)


def record(n: int, previous: int | None = None, *, tenant: str | None = None, filler: int = 0) -> Record:
    """Response ``n``: a message in, a message out; ``filler`` bytes that do not pack."""
    noise = random.Random(n).randbytes(filler).hex()
    return Record(
        id=rid(n),
        tenant=tenant,
        session=None,
        previous=None if previous is None else rid(previous),
        items=[{"id": f"msg_in{n}", "type": "message", "role": "user", "content": [noise]}],
        response={"id": rid(n), "output": [{"id": out(n), "type": "message", "content": []}]},
    )


def ids(items: list[dict[str, Any]] | None) -> list[str]:
    assert items is not None
    return [item["id"] for item in items]


def store_of(*records: Record, max_bytes: int = ROOM, folder: Path | None = None) -> ResponseStore:
    store = ResponseStore(max_bytes, folder)
    for one in records:
        store.keep(one)
    return store


def test_what_is_kept_is_found_whole() -> None:
    store = store_of(record(1))
    assert store.find(None, rid(1)) == record(1)
    assert store.item(None, out(1)) == record(1).output[0]
    assert store.find(None, rid(2)) is None
    assert store.item(None, "msg_in1") is None  # the client's own ids name nothing here


def test_a_context_is_everything_that_came_before_in_order() -> None:
    store = store_of(record(1), record(2, 1), record(3, 2))
    assert ids(store.context(None, rid(3))) == ["msg_in1", out(1), "msg_in2", out(2), "msg_in3"]


def test_two_that_go_on_from_one_do_not_see_each_other() -> None:
    store = store_of(record(1), record(2, 1), record(3, 1))
    assert ids(store.context(None, rid(2))) == ["msg_in1", out(1), "msg_in2"]
    assert ids(store.context(None, rid(3))) == ["msg_in1", out(1), "msg_in3"]


def test_another_tenant_finds_nothing_and_deletes_nothing() -> None:
    store = store_of(record(1, tenant="a"))
    for other in (None, "b"):
        assert store.find(other, rid(1)) is None
        assert store.context(other, rid(1)) is None
        assert store.item(other, out(1)) is None
        assert not store.delete(other, rid(1))
    assert store.find("a", rid(1)) is not None


def test_a_deleted_response_is_gone_but_those_that_went_on_from_it_stay_whole() -> None:
    store = store_of(record(1), record(2, 1))
    assert store.delete(None, rid(1))
    assert not store.delete(None, rid(1))
    assert store.find(None, rid(1)) is None
    assert store.item(None, out(1)) is None
    assert ids(store.context(None, rid(2))) == ["msg_in1", out(1), "msg_in2"]
    assert store.delete(None, rid(2))
    assert len(store) == store.n_bytes == 0


def test_the_longest_unused_go_first_and_nothing_before_what_needs_it() -> None:
    size = Packed.of(record(1, filler=400)).n_bytes
    store = store_of(record(1, filler=400), record(2, filler=400), max_bytes=int(3.5 * size))
    store.keep(record(3, 1, filler=400))  # uses 1: now 2 is the longest unused
    store.keep(record(4, filler=400))
    assert store.find(None, rid(2)) is None
    assert ids(store.context(None, rid(3)))[0] == "msg_in1"
    assert store.n_bytes <= store.max_bytes


def test_a_record_larger_than_the_store_is_not_kept_and_empties_it_of_nothing_it_counts() -> None:
    store = store_of(record(1, filler=4000), max_bytes=1000)
    assert store.find(None, rid(1)) is None
    assert store.n_bytes == 0


def test_what_went_on_from_something_gone_is_not_kept() -> None:
    store = store_of(record(2, 1))
    assert store.find(None, rid(2)) is None


def test_a_restart_finds_everything_and_what_was_used_last_stays_longest(tmp_path: Path) -> None:
    first = store_of(record(1, tenant="a"), record(2, 1, tenant="a"), record(3), folder=tmp_path)
    first.delete("a", rid(1))
    first.close()
    second = ResponseStore(ROOM, tmp_path)
    assert second.find("a", rid(1)) is None
    assert ids(second.context("a", rid(2))) == ["msg_in1", out(1), "msg_in2"]
    assert second.find(None, rid(3)) == record(3)
    assert second.n_bytes == first.n_bytes
    assert second.delete("a", rid(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{rid(3)}.response"]


def test_a_smaller_store_takes_over_what_fits_the_newest_first(tmp_path: Path) -> None:
    size = Packed.of(record(1, filler=400)).n_bytes
    store_of(*(record(n, filler=400) for n in range(1, 6)), folder=tmp_path).close()
    store = ResponseStore(int(2.5 * size), tmp_path)
    assert [n for n in range(1, 6) if store.find(None, rid(n))] == [4, 5]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"no zlib", Packed.of(replace(record(1), id=rid(9))).data])
def test_a_damaged_file_costs_its_response_and_those_that_went_on_from_it(
    damage: bytes, tmp_path: Path
) -> None:
    store_of(record(1), record(2, 1), record(3), folder=tmp_path).close()
    (tmp_path / f"{rid(1)}.response").write_bytes(damage)
    (tmp_path / f"{rid(4)}.part").write_bytes(b"half")
    store = ResponseStore(ROOM, tmp_path)
    assert [n for n in range(1, 5) if store.find(None, rid(n))] == [3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{rid(3)}.response"]


def test_records_that_claim_to_go_on_from_each_other_are_dropped(tmp_path: Path) -> None:
    for one in (record(1, 2), record(2, 1)):
        (tmp_path / f"{one.id}.response").write_bytes(Packed.of(one).data)
    assert len(ResponseStore(ROOM, tmp_path)) == 0


def test_a_full_disk_leaves_a_response_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError("no space left on device")

    store = store_of(folder=tmp_path)
    monkeypatch.setattr(Path, "write_bytes", full)
    store.keep(record(1))
    assert store.find(None, rid(1)) == record(1)


def test_bytes_counted_are_bytes_held_after_any_sequence(tmp_path: Path) -> None:
    draw = random.Random(7)
    store = ResponseStore(6000, tmp_path)
    for n in range(1, 300):
        match draw.randrange(4):
            case 0:
                store.delete(None, rid(draw.randrange(n)))
            case 1:
                store.find(None, rid(draw.randrange(n)))
            case _:
                store.keep(record(n, draw.choice([None, draw.randrange(n)]), filler=draw.randrange(300)))
        assert store.n_bytes <= store.max_bytes
        assert store.n_bytes == sum(packed.n_bytes for packed in store._records.values())
        assert len(list(tmp_path.iterdir())) == len(store)
        children = [packed.previous for packed in store._records.values()]
        for name, packed in store._records.items():
            assert packed.previous is None or packed.previous in store._records
            assert packed.n_children == children.count(name)
    store.close()
    assert len(ResponseStore(6000, tmp_path)) == len(store)


def test_servers_over_one_folder_find_what_the_others_keep_and_write_apart(tmp_path: Path) -> None:
    one = store_of(record(1, tenant="a"), record(2, 1, tenant="a"), folder=tmp_path)
    two = store_of(record(3, tenant="a"), folder=tmp_path)
    assert two.find("b", rid(2)) is None
    assert ids(two.context("a", rid(2))) == ["msg_in1", out(1), "msg_in2"]
    assert two.item("a", out(2)) == record(2).output[0]
    assert one.find("a", rid(3)) == record(3, tenant="a")
    two.keep(record(4, 2, tenant="a"))
    assert ids(one.context("a", rid(4))) == ["msg_in1", out(1), "msg_in2", out(2), "msg_in4"]
    one.close()
    two.close()
    again = ResponseStore(ROOM, tmp_path)
    assert len(again) == 4
    again.close()


def test_a_response_that_one_server_deleted_is_given_out_by_none(tmp_path: Path) -> None:
    one = store_of(record(1), folder=tmp_path)
    two = store_of(record(2, None), folder=tmp_path)
    assert two.find(None, rid(1)) == record(1)
    assert two.delete(None, rid(1))
    assert one.find(None, rid(1)) is None
    assert two.find(None, rid(1)) is None


def test_no_id_of_a_strangers_making_reads_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.response").write_bytes(Packed.of(record(1)).data)
    store = store_of(folder=tmp_path)
    for name in ("", "x", "../x", "resp_", f"{rid(1)}/", "resp_" + "g" * 32, "\x00"):
        assert store.find(None, name) is None
        assert store.item(None, name) is None
