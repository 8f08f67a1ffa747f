"""The queue between hooks and writer: bounded in bytes, waited for, and honest about errors."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor

from specalign.dump.writer import DumpWriter
from specalign.recorder import RecordError, record_layers
from specalign.recorder.copying import Copier, Stats
from specalign.recorder.memory import ALIGNMENT, Slabs
from tests.unit.recorder.dumps import ids, read_passes, small

KIB = 1024


class Watched(Stats):
    """Says when a hook begins to wait."""

    def __init__(self) -> None:
        self.waiting = threading.Event()
        super().__init__()

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "waits" and value:
            self.waiting.set()


def tensor(fill: int, size: int = KIB) -> Tensor:
    return torch.full((size,), fill, dtype=torch.uint8)


def send(copier: Copier, fill: int, got: list[int], before: Any = None) -> None:
    opened = copier.open()

    def deliver(tensors: Mapping[str, Tensor]) -> None:
        if before is not None:
            before()
        got.append(int(tensors["x"][0]))

    opened.add("x", tensor(fill))
    opened.commit(deliver)


def test_passes_arrive_in_order() -> None:
    copier, got = Copier(max_pending_bytes=10 * KIB), []
    for number in range(50):
        send(copier, number, got)
    copier.close()
    assert got == list(range(50))
    assert (copier.stats.passes, copier.stats.bytes) == (50, 50 * KIB)
    assert copier.stats.peak_pending_bytes <= 10 * KIB


def test_a_hook_waits_for_the_writer_instead_of_taking_more_memory() -> None:
    copier, got = Copier(max_pending_bytes=2 * KIB), []
    copier.stats = stats = Watched()
    # The writer holds the first pass until the hook of the third one waits.
    send(copier, 0, got, before=lambda: stats.waiting.wait(60))
    send(copier, 1, got)
    send(copier, 2, got)
    copier.close()
    assert got == [0, 1, 2]
    assert stats.waits == 1
    assert stats.seconds_waited > 0
    assert not stats.kept_up
    assert stats.peak_pending_bytes == 2 * KIB


def test_kept_up_where_nobody_waited() -> None:
    copier, got = Copier(max_pending_bytes=2 * KIB), []
    send(copier, 0, got)
    send(copier, 1, got)
    copier.close()
    assert copier.stats.kept_up


def test_one_pass_that_cannot_fit_is_refused_and_blocks_nothing() -> None:
    copier, got = Copier(max_pending_bytes=2 * KIB), []
    opened = copier.open()
    opened.add("a", tensor(1))
    with pytest.raises(RecordError, match="one pass holds 2304 bytes so far and max_pending_bytes is 2048"):
        opened.add("b", tensor(1, KIB + 256))
    opened.discard()
    send(copier, 7, got)
    copier.close()
    assert got == [7]


def test_what_is_discarded_is_given_back() -> None:
    copier, got = Copier(max_pending_bytes=KIB), []
    for _ in range(5):
        opened = copier.open()
        opened.add("x", tensor(1))
        opened.discard()
    send(copier, 3, got)
    copier.close()
    assert got == [3]
    assert copier.stats.passes == 1


def fail() -> None:
    raise OSError(28, "no space left")


def test_an_error_of_the_thread_reaches_the_next_forward_once_with_its_cause() -> None:
    copier, got = Copier(max_pending_bytes=10 * KIB), []
    send(copier, 0, got)
    send(copier, 1, got, before=fail)
    send(copier, 2, got)
    with pytest.raises(RecordError, match=r"writing a pass failed, 1 passes before it are on disk: OSError") as caught:
        copier.flush()
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(RecordError, match="raised before") as again:
        copier.open()
    assert again.value.__cause__ is None
    copier.close()
    assert got == [0]
    assert not copier._thread.is_alive()


def test_an_error_of_the_thread_is_raised_at_the_end_if_nothing_came_after() -> None:
    copier = Copier(max_pending_bytes=10 * KIB)
    send(copier, 0, [], before=fail)
    with pytest.raises(RecordError, match="OSError") as caught:
        copier.close()
    assert isinstance(caught.value.__cause__, OSError)
    assert not copier._thread.is_alive()
    copier.close()


def test_a_waiting_hook_is_let_go_when_the_thread_fails() -> None:
    copier = Copier(max_pending_bytes=KIB)
    copier.stats = stats = Watched()

    def wait_and_fail() -> None:
        stats.waiting.wait(60)
        fail()

    send(copier, 0, [], before=wait_and_fail)
    send(copier, 1, [])  # waits until the thread has failed
    with pytest.raises(RecordError, match="OSError"):
        copier.close()


def test_slabs_are_used_again_and_copies_do_not_overlap() -> None:
    slabs = Slabs(pinned=False, slab_bytes=4 * KIB)
    slabs.reserve(4 * KIB)
    taken = [slabs.take(size) for size in (100, 700, KIB)]
    for fill, (_, memory) in enumerate(taken):
        memory.fill_(fill)
    assert [int(memory.max()) for _, memory in taken] == [0, 1, 2]
    assert all((memory.data_ptr() - taken[0][1].data_ptr()) % ALIGNMENT == 0 for _, memory in taken)
    assert slabs.bytes == 4 * KIB
    large, _ = slabs.take(9 * KIB)  # larger than a slab: one of its own
    assert slabs.bytes == 13 * KIB
    for slab, _ in taken:
        slabs.give_back(slab)
    slabs.give_back(large)
    assert slabs.take(4 * KIB)[0] is taken[0][0]
    assert slabs.take(8 * KIB)[0] is large
    assert slabs.bytes == 13 * KIB


def test_a_slab_that_a_forward_in_inference_mode_made_serves_later_ones() -> None:
    slabs = Slabs(pinned=False, slab_bytes=KIB)
    with torch.inference_mode():
        slab, memory = slabs.take(8)
    slabs.give_back(slab)
    assert not memory.is_inference()
    slabs.take(8)[1].fill_(1)


def test_a_failing_disk_reaches_the_caller_in_the_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    write = DumpWriter.write_pass

    def full(self: DumpWriter, *args: Any, **options: Any) -> int:
        return fail() if self.passes == 1 else write(self, *args, **options)  # type: ignore[func-returns-value,return-value]

    monkeypatch.setattr(DumpWriter, "write_pass", full)
    with torch.no_grad(), record_layers(model, tmp_path / "d") as recording:
        model(ids())
        model(ids(seed=2))
        with pytest.raises(RecordError, match="no space left"):
            recording.flush()
        with pytest.raises(RecordError, match="nothing more is recorded"):
            model(ids(seed=3))
    assert len(read_passes(tmp_path / "d")) == 1
    assert not (tmp_path / "d" / "rank00000" / "end.json").exists()
    assert all(not module._forward_hooks for module in model.modules())


def test_an_error_of_the_writer_does_not_hide_the_one_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    monkeypatch.setattr(DumpWriter, "write_pass", lambda *args, **options: fail())
    with pytest.raises(KeyError, match="mine") as caught, torch.no_grad(), record_layers(model, tmp_path / "d"):  # noqa: PT012
        model(ids())
        raise KeyError("mine")
    assert any("no space left" in note for note in caught.value.__notes__)


def test_a_tiny_queue_changes_nothing_but_the_time(tmp_path: Path) -> None:
    model = small()
    one_pass = 4 * 10 * 8 * 4 + 10 * (8 + 8 + 4 + 1)  # four boundaries of 10 rows, and the columns
    for name, limit in (("wide", 1 << 20), ("tiny", one_pass + 64)):
        with torch.no_grad(), record_layers(model, tmp_path / name, max_pending_bytes=limit) as recording:
            for seed in range(8):
                model(ids(seed=seed))
        assert recording.stats.peak_pending_bytes <= limit
    wide, tiny = read_passes(tmp_path / "wide"), read_passes(tmp_path / "tiny")
    assert len(tiny) == 8
    for one, other in zip(wide, tiny, strict=True):
        assert one.keys == other.keys
        assert all((one.raw[key].data == other.raw[key].data).all() for key in one.keys)
