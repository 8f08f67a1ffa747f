"""Which keys of a dump a comparison is about: `--layers embedding,0-5,9,post_norm`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Final

from specalign.dump.keys import Key, in_order, parse_key
from specalign.layer_ids.files import InputError, quoted

WORDS: Final = ("embedding", "post_norm", "logits", "logprobs")
"""What lies outside of layers: boundary 0 and modules before it, and what comes after the last block."""

_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """What is compared. Layer i selects boundary i + 1, which is its output, and the modules of block i.

    Attributes:
        text: as it was asked for; "" selects everything.
        layers: ranges of layers, first and last.
        words: entries of `WORDS`.
    """

    text: str = ""
    layers: tuple[tuple[int, int], ...] = ()
    words: frozenset[str] = frozenset()

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        return not self.text or self._takes(parse_key(key))

    def _takes(self, key: Key) -> bool:
        if key.layer is not None:
            return any(first <= key.layer <= last for first, last in self.layers)
        if key.kind in ("boundary", "module"):
            return "embedding" in self.words
        return key.kind in self.words

    def of(self, keys: Iterable[str]) -> list[str]:
        """The selected ones, in the order of the forward."""
        return in_order(key for key in keys if key in self)

    def missing(self, keys: Iterable[str]) -> list[str]:
        """The boundaries and words that were asked for one by one and are not among `keys`."""
        there = set(keys)
        wanted = {f"boundary.{layer + 1}" for first, last in self.layers for layer in range(first, last + 1)}
        wanted |= {word if word != "embedding" else "boundary.0" for word in self.words}
        modules = {parse_key(key).layer for key in there if key.startswith("module.")}
        return in_order(key for key in wanted - there if parse_key(key).layer not in modules or key == "boundary.0")


EVERYTHING: Final = Selection()


def parse_selection(text: str) -> Selection:
    """A list such as `0-5,9` or `embedding,3,post_norm`; "" selects everything.

    Raises:
        InputError: neither a layer, a range of layers, nor one of `WORDS`.
    """
    layers, words = [], set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part)
        if match:
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first:
                raise InputError(f"--layers {quoted(text)}: {part} runs backwards; write {last}-{first}")
            layers.append((first, last))
        elif part in WORDS:
            words.add(part)
        else:
            raise InputError(
                f"--layers {quoted(text)}: {quoted(part)} is neither a layer, a range as 0-5, nor one of {', '.join(WORDS)}"
            )
    if text.strip() and not layers and not words:
        raise InputError(f"--layers {quoted(text)} names nothing; write a list such as 0-5,9")
    return Selection(text.strip(), tuple(layers), frozenset(words))
