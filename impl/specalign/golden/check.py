"""A result held against its golden: which tensors differ, where first, and by how much."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from specalign.compare.bits import compare_rows
from specalign.compare.leaves import Leaf, read_leaves
from specalign.compare.modes import BITS, Mode
from specalign.compare.result import CompareReport
from specalign.compare.values import NAN_DISTANCE, decode
from specalign.dump.nonfinite import AllowNonfinite, any_illegal, illegal
from specalign.golden.document import StoredTensor
from specalign.golden.environment import Environment
from specalign.golden.errors import GoldenError
from specalign.golden.files import Golden, fingerprint_of
from specalign.golden.keys import Key
from specalign.layer_ids.files import shown

Nonfinite = Literal["no", "inf", "all"]
"""Which non-finite values a result may hold: none, -inf (a masked logit), or any, NaN too."""

SHOWN: Final = 10
_LAST_KEY: Final = re.compile(r"\['([^']*)'\](?:\[\d+\])*")
_LOGITS: Final = frozenset({"logits", "logprobs"})


@dataclasses.dataclass(frozen=True, slots=True)
class TensorCheck:
    """One tensor of a result that does not agree with the golden.

    Attributes:
        path: in the result; empty for a result that is one tensor.
        text: what differs, where first, and by how much; one or two lines.
        first_row: the first row (of `[rows, width]`, width being the last axis) that differs; None where no values were compared.
        max_ulp: the largest distance; None for fingerprints and where no values were compared.
    """

    path: str
    text: str
    first_row: int | None = None
    max_ulp: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class GoldenReport:
    """What a check found.

    Attributes:
        key: whose golden it is.
        path: of the golden.
        mode: "bits", "ulp:1", …
        compared: tensors that were compared, or rows of a dump.
        checks: the tensors that do not agree.
        problems: why nothing more could be compared, or something could not; each fails the check.
        changes: versions that differ from those of the golden; they explain and decide nothing.
        compare: of a golden that is a dump, the comparison of the two dumps: side a is the golden.
        artifacts: the folder with both sides of what differs, where one was written.
        missing: there is no golden for this architecture.
    """

    key: Key
    path: Path
    mode: str
    compared: int
    checks: tuple[TensorCheck, ...] = ()
    problems: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    compare: CompareReport | None = None
    artifacts: Path | None = None
    missing: bool = False

    @property
    def ok(self) -> bool:
        """Whether something was compared and all of it agrees."""
        return not self.checks and not self.problems and self.compared > 0 and (self.compare is None or self.compare.ok)

    @property
    def max_ulp(self) -> int | None:
        """The largest distance of any element, where values were compared."""
        found = [check.max_ulp for check in self.checks if check.max_ulp is not None]
        if self.compare is not None:
            found += [key.max_ulp for key in self.compare.keys if key.max_ulp is not None]
        return max(found, default=None)

    @property
    def verdict(self) -> str:
        """One short line, for a table."""
        if self.ok:
            return f"equal ({self.mode})"
        if self.problems and not self.checks:
            return "missing" if self.missing else "not comparable"
        ulp = self.max_ulp
        return "different" if ulp is None else f"different, at most {ulp_text(ulp)}"

    @property
    def counts(self) -> tuple[int, int, str]:
        """How many were compared, how many of them differ, and of what."""
        if self.compare is None:
            return self.compared, min(len(self.checks), self.compared), "tensors"
        return self.compared, min(max((key.rows_mismatching for key in self.compare.keys), default=0), self.compared), "rows"

    @property
    def first_line(self) -> str:
        """The first thing that is wrong, in one line; empty if nothing is."""
        if self.ok:
            return ""
        found = [*(check.text for check in self.checks), *self.problems]
        if not found and self.compare is not None:
            found = [self.compare.format()]
        return found[0].splitlines()[0].strip() if found else self.verdict

    def format(self) -> str:
        """Where, by how much, and what else is different."""
        lines = [f"golden {self.key.text}: {self.verdict}"]
        found = [*self.problems, *(check.text for check in self.checks)]
        lines += [f"  {text}" for text in found[:SHOWN]]
        lines += [f"  … and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        if self.compare is not None and not self.compare.ok:
            lines += [f"  {line}" for line in self.compare.format().splitlines()]
        lines.append(f"  golden: {shown(self.path)}")
        lines += [f"  since the golden was written: {', '.join(self.changes)}"] if self.changes and not self.ok else []
        lines += [f"  both sides: {shown(self.artifacts)}"] if self.artifacts is not None else []
        return "\n".join(lines)


def read_result(name: str, tensors: Any, nonfinite: Nonfinite | None) -> list[Leaf]:
    """The tensors of a result, which are not copied, once they are known to be worth a golden.

    Raises:
        specalign.compare.leaves.NotComparableError: nothing that could be compared.
        GoldenError: two tensors of one path.
    """
    if nonfinite not in (None, "no", "inf", "all"):
        raise GoldenError(f'allow_nonfinite is {nonfinite!r}: give "no", "inf" (-inf is legal), or "all" (NaN too)')
    leaves = read_leaves(repr(name) if name else "the result", tensors, allow_nan=True, copy=False)
    paths = [leaf.path for leaf in leaves]
    if len(set(paths)) != len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise GoldenError(f"{name}{twice}: two tensors have this path, so a golden cannot tell them apart; give them other keys")
    return leaves


def illegal_values(name: str, leaves: Sequence[Leaf], nonfinite: Nonfinite | None) -> tuple[str, ...]:
    """Non-finite values that must not be in a golden, one line a tensor."""
    return tuple(text for leaf in leaves if (text := _illegal_in(leaf, _allowed(name, leaf.path, nonfinite))) is not None)


def check_tensors(
    golden: Golden,
    leaves: Sequence[Leaf],
    environment: Environment,
    mode: Mode = BITS,
    nonfinite: Nonfinite | None = None,
) -> GoldenReport:
    """Hold the tensors of a result against a golden of tensors.

    Args:
        golden: side a.
        leaves: side b.
        environment: where side b was computed; its architecture must be the golden's.
        mode: what counts as equal.
        nonfinite: which non-finite values are legal; None: none, but −inf in tensors called logits or logprobs.

    Raises:
        GoldenError: a tolerance for a golden of fingerprints, or a golden that is damaged.
    """
    document = golden.document
    if document.form not in ("values", "fingerprint"):
        raise GoldenError(f"{shown(golden.path)}: is a golden of the form {document.form}, which holds no tensors")
    if document.form == "fingerprint" and not mode.is_bits:
        raise GoldenError(
            f"{shown(golden.path)}: holds fingerprints, which tell equal bits from others and nothing more, and the mode"
            f" is {mode}: check it by bits, or write the golden with its values"
        )
    if (document.environment.device, document.environment.arch) != (environment.device, environment.arch):
        raise GoldenError(
            f"{shown(golden.path)}: was computed on {document.environment.arch}, and this result on {environment.arch}"
        )
    by_path = {leaf.path: leaf for leaf in leaves}
    problems = _set_problems([tensor.path for tensor in document.tensors], list(by_path))
    pairs = [(tensor, by_path[tensor.path]) for tensor in document.tensors if tensor.path in by_path]
    if not mode.is_bits:
        _refuse_damage(golden)  # within a tolerance a damaged golden could pass
    checks = [_check(golden, tensor, leaf, mode, _allowed(document.key.name, leaf.path, nonfinite)) for tensor, leaf in pairs]
    found = tuple(check for check in checks if check is not None)
    if found:
        _refuse_damage(golden)  # a golden that is not what was written says nothing of the result
    changes = document.environment.changes(environment)
    return GoldenReport(document.key, golden.path, str(mode), len(pairs), found, problems, changes)


def ulp_text(distance: int) -> str:
    """`3 ulp`, or what stands for the distance of a NaN."""
    return "a NaN apart" if distance == NAN_DISTANCE else f"{distance} ulp"


def _refuse_damage(golden: Golden) -> None:
    damaged = golden.damaged()
    if damaged:
        raise GoldenError(
            f"{shown(golden.path)}: the data of {', '.join(damaged[:SHOWN])} do not have their checksum: the golden was damaged"
            " after it was written; check it out again"
        )


def _set_problems(golden: list[str], result: list[str]) -> tuple[str, ...]:
    lacking, extra = [p for p in golden if p not in result], [p for p in result if p not in golden]
    lines = []
    if lacking:
        lines.append(f"the result lacks {_listed(lacking)}, which the golden has")
    if extra:
        lines.append(f"the result has {_listed(extra)}, which the golden lacks and which nothing was compared with")
    return tuple(lines)


def _listed(paths: list[str]) -> str:
    shown_paths = ", ".join(path or "a tensor that is no part of a tree" for path in paths[:SHOWN])
    return shown_paths + (f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else "")


def _check(golden: Golden, tensor: StoredTensor, leaf: Leaf, mode: Mode, allow: Nonfinite) -> TensorCheck | None:
    where = tensor.path or "the tensor"
    if tensor.dtype != leaf.dtype.name:
        return TensorCheck(tensor.path, f"{where}: element type {tensor.dtype} in the golden, {leaf.dtype.name} in the result")
    if tensor.shape != leaf.shape:
        return TensorCheck(
            tensor.path, f"{where} ({tensor.dtype}): shape {list(tensor.shape)} in the golden, {list(leaf.shape)} in the result"
        )
    if golden.document.form == "fingerprint":
        return _check_fingerprint(golden, tensor, leaf, allow)
    return _check_values(golden.leaf(tensor), leaf, where, mode, allow)


def _check_values(golden: Leaf, leaf: Leaf, where: str, mode: Mode, allow: Nonfinite) -> TensorCheck | None:
    width = leaf.shape[-1] if leaf.shape else 1
    a, b = (side.bits.reshape(-1, width) for side in (golden, leaf))
    found = compare_rows(a, b, leaf.dtype, mode, allow_nonfinite="inf" if allow == "inf" else "no")
    counts = (found.nonfinite_a, found.nonfinite_b) if allow != "all" else (0, 0)
    if found.first is None and not any(counts):
        return None
    lines = []
    if found.first is not None:
        index = [int(part) for part in np.unravel_index(found.first.row * width + found.first.column, leaf.shape)]
        bits_a, bits_b = (f"0x{bits:0{found.first.digits}x}" for bits in (found.first.bits_a, found.first.bits_b))
        lines.append(
            f"{where} ({leaf.kind}): first at {index}: {bits_a} ({found.first.value_a!r}) in the golden, {bits_b}"
            f" ({found.first.value_b!r}) in the result{_first_bit(found.first.bits_a ^ found.first.bits_b)};"
            f" {found.mismatches} of {found.elements} elements differ, at most {ulp_text(found.max_ulp)}"
        )
    if any(counts):
        lines.append(
            f"{where} ({leaf.kind}): {counts[0]} non-finite values in the golden, {counts[1]} in the result; {_NONFINITE}"
        )
    row = found.first.row if found.first is not None else None
    return TensorCheck(golden.path, "\n    ".join(lines), row, found.max_ulp if found.first is not None else None)


def _check_fingerprint(golden: Golden, tensor: StoredTensor, leaf: Leaf, allow: Nonfinite) -> TensorCheck | None:
    stored, made = golden.data[tensor.stored], fingerprint_of(leaf)
    wrong = (stored != made).any(axis=1)
    bad = _illegal_in(leaf, allow)
    if not wrong.any():
        return None if bad is None else TensorCheck(tensor.path, bad)
    row = int(wrong.argmax())
    a, b = (f"{int(side[row, 0]):016x}{int(side[row, 1]):016x}" for side in (stored, made))
    text = (
        f"{tensor.path or 'the tensor'} ({leaf.kind}): {int(wrong.sum())} of {len(wrong)} rows have other bits, first row {row}:"
        f" fingerprint {a} in the golden, {b} in the result; the golden holds no values to say by how much"
    )
    width = leaf.shape[-1] if leaf.shape else 1
    return TensorCheck(tensor.path, text if bad is None else f"{text}\n    {bad}", row * (leaf.bits.size // len(wrong) // width))


_NONFINITE: Final = 'find out where they come from, or say allow_nonfinite="inf" (-inf is legal) or "all" (NaN too)'


def _illegal_in(leaf: Leaf, allow: Nonfinite) -> str | None:
    legal: AllowNonfinite = "inf" if allow == "inf" else "no"
    if allow == "all" or not any_illegal(leaf.bits, leaf.dtype, legal):
        return None
    wrong = illegal(leaf.bits, leaf.dtype, legal)
    index = tuple(int(part) for part in np.unravel_index(int(wrong.argmax()), wrong.shape))
    value = (
        float(decode(leaf.bits[index].reshape(1), leaf.dtype)[0])
        if leaf.shape
        else float(decode(leaf.bits.reshape(1), leaf.dtype)[0])
    )
    return (
        f"{leaf.path or 'the tensor'} ({leaf.kind}): {int(wrong.sum())} non-finite values, the first at {list(index)}: {value!r};"
        f" {_NONFINITE}"
    )


def _allowed(name: str, path: str, asked: Nonfinite | None) -> Nonfinite:
    """What the caller says; else −inf is legal in what is called logits or logprobs, by its last key or by the result's name."""
    if asked is not None:
        return asked
    keys = _LAST_KEY.findall(path)
    return "inf" if (keys[-1] if keys else name) in _LOGITS else "no"


def _first_bit(difference: int) -> str:
    return f", highest differing bit {difference.bit_length() - 1}"
