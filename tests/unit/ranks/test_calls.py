"""What can be sent to the ranks and back, and what is refused in words that say what to do."""

from __future__ import annotations

import functools
import os
import pickle
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.ranks import RankGroupError  # noqa: E402
from specalign.ranks.calls import name_of, pack, pack_call, refuse_function  # noqa: E402
from tests.unit.ranks import functions  # noqa: E402

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_arrives_with_the_same_bits(dtype: Any) -> None:
    raw = torch.arange(256, dtype=torch.uint8).repeat(2)[:480] & (1 if dtype is torch.bool else 255)
    sent = raw.view(dtype).reshape(-1, 5)  # infinities and NaN among them
    got = pickle.loads(pack({"a": [sent]}))["a"][0]
    assert (got.dtype, got.shape, got.device.type) == (dtype, sent.shape, "cpu")
    assert got.contiguous().view(torch.uint8).equal(sent.contiguous().view(torch.uint8))


def test_shapes_strides_and_views() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    for sent in (x.permute(2, 0, 1), x[:, ::2], x[0, 0, 0], torch.empty(0, 3), torch.ones(2, dtype=torch.complex64).conj()):
        got = pickle.loads(pack(sent))
        assert got.shape == sent.shape
        assert got.resolve_conj().equal(sent.resolve_conj())
    got = pickle.loads(pack(x))
    got += 1  # a tensor of its own, and writable
    assert x[0, 0, 0] == 0


def test_a_tensor_arrives_without_its_history() -> None:
    leaf = torch.nn.Parameter(torch.ones(2))
    for sent in (leaf, leaf * 2):
        got = pickle.loads(pack(sent))
        assert (type(got), got.requires_grad) == (torch.Tensor, False)


def test_one_tensor_twice_stays_one() -> None:
    x = torch.ones(2)
    a, b = pickle.loads(pack((x, x)))
    assert a is b


def test_what_is_no_plain_tensor_goes_as_pickle_does_it() -> None:
    sparse = torch.eye(3).to_sparse()
    assert pickle.loads(pack(sparse)).to_dense().equal(torch.eye(3))


def test_a_call_arrives_whole() -> None:
    call = pack_call(functools.partial(functions.place, 1), (2,), {"x": torch.ones(1)})
    function, args, kwargs = pickle.loads(call)
    assert (function.func, function.args, args) == (functions.place, (1,), (2,))
    assert kwargs["x"].equal(torch.ones(1))


def _inner() -> Any:
    def inside() -> None: ...

    return inside


class Holder:
    def __reduce__(self) -> Any:
        raise OSError("not me")


REFUSED = {
    "lambda": (lambda: None, "is a lambda: the ranks are new processes"),
    "closure": (_inner(), r"_inner\.<locals>\.inside is defined inside of a function"),
    "partial": (functools.partial(lambda: None, 1), "is a lambda"),
    "no function": (3, "3 cannot be called: give a function"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_function_without_a_name_to_import_is_refused(case: str) -> None:
    function, said = REFUSED[case]
    with pytest.raises(RankGroupError, match=said):
        pack_call(function, (), {})


def test_a_function_of_main_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_inner, "__module__", "__main__")
    with pytest.raises(RankGroupError, match="defined in __main__, which the ranks do not run"):
        refuse_function(_inner)


@pytest.mark.parametrize("value", [Holder(), lambda: None, sys.stdout], ids=["own error", "lambda", "file"])
def test_an_argument_that_cannot_be_pickled_is_refused(value: object) -> None:
    with pytest.raises(RankGroupError, match=r"functions\.place cannot be sent to the ranks: \w+: .*\. Pass plain values"):
        pack_call(functions.place, (value,), {})


def test_names() -> None:
    assert name_of(functools.partial(functools.partial(os.getpid))) == "posix.getpid"
    assert name_of(functions.place) == "tests.unit.ranks.functions.place"
