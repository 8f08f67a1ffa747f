"""Foreign dumps for tests: the real files beside, and files made by hand as the public engines write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from specalign.dump.errors import DumpError
from specalign.dump.passes import Dump, RawTensor
from specalign.dump.rows import Rows, make_rows

DATA = Path(__file__).parents[3] / "data" / "sglang_dumps"
PROMPT = [5, 17, 23, 99, 101, 7, 301, 42, 555, 1000, 12, 64]
HOOKS = DATA / "forward_hooks_0.5.16"
TOY = DATA / "tensor_dump" / "TP0_PP0_Rank0_pid19639"
DUMPER = DATA / "dumper" / "toy"

_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The raw bits of a tensor by torch's own view, independent of the readers."""
    signed = tensor.contiguous().view(_SIGNED[tensor.element_size()]).numpy()
    return signed.view(signed.dtype.str.replace("i", "u"))


def assert_bits(found: RawTensor, tensor: Tensor) -> None:
    """A loaded tensor holds exactly the bits of a torch tensor."""
    assert found.dtype.torch == str(tensor.dtype).removeprefix("torch.")
    assert found.data.shape == tuple(tensor.shape) == found.spec.shape
    assert np.array_equal(found.data, bits(tensor))


def engine_sum(delta: Tensor, residual: Tensor) -> Tensor:
    """The residual sum as SGLang adds it."""
    return (delta.float() + residual.float()).to(delta.dtype)


def real(path: Path) -> Any:
    """What torch itself reads out of a real file."""
    return torch.load(path, weights_only=True, map_location="cpu")


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random numbers that differ from call to call by seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def plain_rows(count: int) -> Rows:
    """`count` tokens of one request."""
    return make_rows(range(100, 100 + count), range(count), [0] * count, [0] * count, ["given"])


def refused(call: Any, *args: Any, **options: Any) -> str:
    """The one-line message of a refusal."""
    with pytest.raises(DumpError) as caught:
        call(*args, **options)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1500
    return message


def load_all(dump: Dump) -> list[Mapping[str, RawTensor]]:
    """Every pass with all its tensors."""
    return [dump.load(info) for info in dump.infos()]


def save(path: Path, content: object) -> Path:
    """`torch.save`, with the folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


def info_fields(tokens: Sequence[int], positions: Sequence[int], seq_lens: Sequence[int], **more: object) -> dict[str, object]:
    """What SGLang's tensor dump writes of a `ForwardBatch`; `more` as slime's patch adds it."""
    fields = {
        "input_ids": torch.tensor(tokens, dtype=torch.int64),
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int64),
        "positions": torch.tensor(positions, dtype=torch.int64),
        **{name: torch.tensor(value) if isinstance(value, list) and name != "rids" else value for name, value in more.items()},
    }
    return {f"model.forward_batch_info.{name}": value for name, value in fields.items()}
