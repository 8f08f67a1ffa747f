"""CUDA_VISIBLE_DEVICES is read as CUDA reads it."""

from __future__ import annotations

import dataclasses

import pytest

from specalign.leases import Device, Inventory, LeaseError, visible_devices
from specalign.leases.visible import read_visible
from tests.unit.leases.made_up import gpu, mig

FOUR = tuple(gpu(index) for index in range(4))
TWINS = (gpu(0, uuid="GPU-ab000000"), gpu(1, uuid="GPU-ab100000"), gpu(2, uuid="GPU-cd000000"))


def _shown(devices: tuple[Device, ...], text: str, **environ: str) -> list[int]:
    return [device.index for device in read_visible(devices, {"CUDA_VISIBLE_DEVICES": text, **environ})]


def test_all_where_it_is_not_set() -> None:
    assert read_visible(FOUR, {}) == FOUR


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 3 ", [1, 3]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [0]),
        ("1,7,2", [1]),
        ("7", []),
        ("none", []),
        ("1gpu,2", [1, 2]),
        ("0,,1", [0]),
        ("0,0", []),
        ("1,0,1", []),
    ],
)
def test_indices(text: str, indices: list[int]) -> None:
    assert _shown(FOUR, text) == indices


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("GPU-cd000000", [2]),
        ("GPU-cd", [2]),
        ("GPU-cd, GPU-ab1", [2, 1]),
        ("GPU-ab", []),
        ("GPU-cd,GPU-ab,GPU-ab0", [2]),
        ("GPU-cd,0", [2]),
        ("0,GPU-cd", [0]),
        ("GPU-cd,GPU-cd0", []),
        ("gpu-cd", []),
        ("GPU-ff", []),
    ],
)
def test_uuids_and_their_prefixes(text: str, indices: list[int]) -> None:
    assert _shown(TWINS, text) == indices


SPLIT = (mig(0, 0), mig(0, 1), gpu(1))


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("0", [SPLIT[0]]),
        ("1", [SPLIT[2]]),
        ("0,1", [SPLIT[0], SPLIT[2]]),
        (SPLIT[1].uuid, [SPLIT[1]]),
        ("MIG-00000001", [SPLIT[1]]),
        ("MIG-0000", []),
        (f"{SPLIT[1].uuid},{SPLIT[0].uuid}", [SPLIT[1], SPLIT[0]]),
        (gpu(0).uuid, [SPLIT[0]]),
        (f"{SPLIT[1].uuid},{gpu(1).uuid}", [SPLIT[1]]),
    ],
)
def test_instances_of_a_split_gpu(text: str, devices: list[Device]) -> None:
    assert list(read_visible(SPLIT, {"CUDA_VISIBLE_DEVICES": text})) == devices


def test_old_names_of_instances() -> None:
    old = dataclasses.replace(SPLIT[0], uuid=f"MIG-{gpu(0).uuid}/7/0")
    assert read_visible((old,), {"CUDA_VISIBLE_DEVICES": old.uuid}) == (old,)


UNLIKE = (gpu(0, name="T4"), gpu(1), gpu(2))


def test_indices_of_unlike_gpus_are_refused_unless_their_order_is_fixed() -> None:
    with pytest.raises(LeaseError, match=r"'0' counts GPUs of different kinds \(NVIDIA H200, T4\).*CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        _shown(UNLIKE, "0")
    assert _shown(UNLIKE, "0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [0]
    assert _shown(UNLIKE, UNLIKE[0].uuid) == [0]
    assert _shown(UNLIKE, "2,1,0") == [2, 1, 0]
    assert _shown(UNLIKE, "") == []


def test_a_note_says_what_is_hidden() -> None:
    found = Inventory(FOUR, "nvml")
    assert visible_devices(found, {"CUDA_VISIBLE_DEVICES": "1,9"}).notes == ("CUDA_VISIBLE_DEVICES='1,9' shows 1 of 4 GPUs",)
    assert visible_devices(found, {"CUDA_VISIBLE_DEVICES": "3,2,1,0"}).notes == ()
    assert visible_devices(found, {}) == found
