"""Safetensors files for tests: as the reference writer makes them, and as nobody should."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest
import safetensors

from specalign.layer_ids.files import InputError
from specalign.layer_ids.tensor_files import TensorFacts, read_tensor_facts

Tensors = dict[str, tuple[str, list[int], bytes]]

HEAD: Tensors = {
    "d2t": ("int64", [4], b"".join(v.to_bytes(8, "little", signed=True) for v in (0, 3, -5, 2**40))),
    "t2d": ("bool", [6], bytes(6)),
    "fc.weight": ("bfloat16", [2, 6], bytes(24)),
    "midlayer.scale": ("float32", [], bytes(4)),
    "empty": ("float16", [0, 3], b""),
}


def serialize(tensors: Tensors, metadata: dict[str, str] | None = None) -> bytes:
    """A file as the reference writer makes it. The writer took plain dicts before 0.8 and takes pointers since."""
    spec = getattr(safetensors, "TensorSpec", None)
    if spec is None:
        plain = {name: {"dtype": dtype, "shape": shape, "data": data} for name, (dtype, shape, data) in tensors.items()}
        return bytes(safetensors.serialize(plain, metadata=metadata))
    buffers = {name: ctypes.create_string_buffer(data, max(1, len(data))) for name, (_, _, data) in tensors.items()}
    specs = {
        name: spec(dtype=dtype, shape=shape, data_ptr=ctypes.addressof(buffers[name]), data_len=len(data))
        for name, (dtype, shape, data) in tensors.items()
    }
    return bytes(safetensors.serialize(specs, metadata=metadata))


def raw(header: object, data: bytes = b"") -> bytes:
    """A file with any header at all."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, shape: object = None, dtype: object = "U8") -> dict[str, object]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def facts_of(folder: Path) -> TensorFacts:
    facts = read_tensor_facts(folder)
    assert facts is not None
    return facts


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_tensor_facts(folder)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1000
    assert str(folder) in message
    return message
