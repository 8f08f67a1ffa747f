"""Known faults of code that reads layer ids and widths out of a draft head's config, and which of them a result looks like."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

Config: TypeAlias = dict[str, Any]
Sources: TypeAlias = Sequence[str]
Reader: TypeAlias = Callable[[Sources, Config], Any]

HARD_CODED: Final = (2, 18, 33)
MISSING: Final = object()


def look_up(config: Mapping[str, Any], source: str) -> Any:
    """The value under a dotted key, or `MISSING` where it or a parent is absent or null."""
    value: Any = config
    for key in source.split("."):
        if not isinstance(value, Mapping) or value.get(key) is None:
            return MISSING
        value = value[key]
    return value


def put(config: Config, source: str, value: Any) -> None:
    """Sets a dotted key, creating the parents."""
    *parents, last = source.split(".")
    for key in parents:
        config = config.setdefault(key, {})
    config[last] = value


def read_right(sources: Sources, config: Config) -> list[int] | None:
    """What a right reader gives: the ids of the first source that states any, else None."""
    found = (look_up(config, source) for source in sources)
    return next((list(ids) for ids in found if ids is not MISSING), None)


@dataclasses.dataclass(frozen=True, slots=True)
class KnownConfigFault:
    """One public fault.

    Attributes:
        name: what messages and `make faults` call it.
        references: the public reports, if there are any.
        summary: what the faulty code does, one clause.
        remedy: what to do about it, one sentence.
        reads_like: `(sources, config) -> ids`, or it raises; None for faults of the width only.
        counts_like: `(sources, config) -> number of states` that the width of the fc input is made for; None elsewhere.
    """

    name: str
    references: tuple[str, ...]
    summary: str
    remedy: str
    reads_like: Reader | None = None
    counts_like: Reader | None = None

    def format(self) -> str:
        return f"{self.name} ({', '.join(self.references) or 'no public report'}): {self.summary}"


def _nested(sources: Sources, nested: bool) -> Sources:
    return [source for source in sources if ("." in source) == nested]


def _no_parent_check(sources: Sources, config: Config) -> Any:
    """Indexes the nested keys without asking whether their parents exist."""
    for source in sources:
        value: Any = config
        for key in source.split("."):
            value = value[key] if "." in source else value.get(key)
        if value is not None:
            return value
    return None


def _nulls_kept(sources: Sources, config: Config) -> Any:
    """Asks whether the key is there, not whether it holds something."""
    for source in sources:
        *parents, last = source.split(".")
        home: Any = config
        for key in parents:
            home = home.get(key) or {}
        if last in home:
            return list(home[last])
    return None


def _deduplicated(sources: Sources, config: Config) -> Any:
    ids = read_right(sources, config)
    return None if ids is None else list(dict.fromkeys(ids))


def _as_floats(sources: Sources, config: Config) -> Any:
    ids = read_right(sources, config)
    return None if ids is None else [float(k) for k in ids]


def _changed(sources: Sources, config: Config) -> Any:
    ids = read_right(sources, config)
    for source in sources:
        config.pop(source.partition(".")[0], None)
    return ids


KNOWN_CONFIG_FAULTS: Final = (
    KnownConfigFault(
        "crash-without-the-parent-key",
        ("sglang PR #21274",),
        "a config without `eagle_config` raises, and a caller that swallows the exception serves the default",
        "Look each key up with a default; return None where no source states ids.",
        _no_parent_check,
    ),
    KnownConfigFault(
        "null-not-read-as-missing",
        ("Mistral3_speculator_dummy config",),
        "a key that is there but null is taken for a list, and iterating over it crashes",
        "Treat null as missing.",
        _nulls_kept,
    ),
    KnownConfigFault(
        "nested-ids-ignored",
        ("llama.cpp #27040", "speculators eagle3_converter.py"),
        "only the top-level key is read, so the ids in `eagle_config` are lost",
        "Read the nested key too, in the declared order.",
        lambda sources, config: read_right(_nested(sources, False), config),
    ),
    KnownConfigFault(
        "top-level-ids-ignored",
        ("SGLang 0.5.23 spec_aux_hidden_state.py",),
        "only `eagle_config` is read, so ids at the top level are lost",
        "Read the top-level key too, in the declared order.",
        lambda sources, config: read_right(_nested(sources, True), config),
    ),
    KnownConfigFault(
        "precedence-turned-round",
        ("SGLang 0.5.23 eagle_utils.py against spec_aux_hidden_state.py",),
        "where two places state ids, the later one wins",
        "Return the ids of the first source that states any.",
        lambda sources, config: read_right(list(reversed(sources)), config),
    ),
    KnownConfigFault(
        "missing-becomes-a-default",
        ("vllm #50170",),
        "a config without ids gives made-up ids, so nobody can warn that they were guessed",
        "Return None, and let the caller warn and name the setting.",
        lambda sources, config: read_right(sources, config) or list(HARD_CODED),
    ),
    KnownConfigFault(
        "hard-coded-ids",
        ("tokenspeed #526",),
        "the same ids come back whatever the config states",
        "Read them from the config.",
        lambda sources, config: list(HARD_CODED),
    ),
    KnownConfigFault(
        "config-changed",
        (),
        "reading removes the keys, so the next reader finds none",
        "Look up, do not pop.",
        _changed,
    ),
    KnownConfigFault(
        "duplicates-removed",
        (),
        "an id that the config names twice comes back once, so nobody downstream can see that the config is wrong",
        "Return the list as it stands, or refuse it with a ValueError.",
        _deduplicated,
    ),
    KnownConfigFault(
        "ids-become-floats",
        (),
        "the ids come back as floats, which compare equal to the ids and index nothing",
        "Hand on the integers of the config.",
        _as_floats,
    ),
    KnownConfigFault(
        "width-ignores-top-level-ids",
        ("vllm #54526", "vllm PR #54598", "speculators #1065"),
        "the fc input is made for 3 states although the top level lists another number",
        "Take the count from the same ids that are captured.",
        counts_like=lambda sources, config: len(read_right(_nested(sources, True), config) or (0, 0, 0)),
    ),
    KnownConfigFault(
        "width-always-three",
        ("SpecForge llama3_eagle.py",),
        "the fc input is made for 3 states whatever the ids",
        "Take the count from the same ids that are captured.",
        counts_like=lambda sources, config: 3,
    ),
    KnownConfigFault(
        "width-without-duplicates",
        (),
        "the fc input is made for the different ids, although one that is named twice is captured twice",
        "Take the count from the list as it stands.",
        counts_like=lambda sources, config: len(set(read_right(sources, config) or ())),
    ),
)


def run_reader(reader: Reader, sources: Sources, config: Config) -> Any:
    """What `reader` gives for a copy of `config`: ids as a list, anything else as it is, or the type of what it raised."""
    try:
        got = reader(sources, copy.deepcopy(config))
    except Exception as error:  # a fault may crash in any way: that is its outcome
        return type(error)
    return list(got) if isinstance(got, (list, tuple)) else got


def same_ids(one: Any, other: Any) -> bool:
    """Whether two results are the same integers in the same order, or both None. Integers of any library count, bools do not."""
    if not (isinstance(one, list) and isinstance(other, list)):
        return one is None and other is None
    return len(one) == len(other) and all(_same_integer(*pair) for pair in zip(one, other, strict=True))


def _same_integer(one: Any, other: Any) -> bool:
    integers = all(hasattr(k, "__index__") and not isinstance(k, bool) for k in (one, other))
    return integers and operator.index(one) == operator.index(other)


def diagnose_config(
    sources: Sources, config: Config, got: Any, *, counts: bool = False, seen: Iterable[tuple[Config, Any]] = ()
) -> tuple[KnownConfigFault, ...]:
    """The known faults that give exactly `got` for `config`, those first that explain most of `seen`.

    Args:
        sources: the dotted keys in order of precedence.
        config: the config of the failing call.
        got: the ids, or with `counts` the number of states, or the type of the exception.
        counts: look among the faults of the width.
        seen: more calls of the same reader, config and result.
    """
    calls = list(seen)
    readers = [(f, f.counts_like if counts else f.reads_like) for f in KNOWN_CONFIG_FAULTS]
    ids = read_right(sources, config)
    right = len(ids or ()) if counts else ids
    results = [(f, reader, run_reader(reader, sources, config)) for f, reader in readers if reader]
    fitting = [(f, reader) for f, reader, result in results if _same(result, got) and not _same(result, right)]
    score = {f.name: sum(_same(run_reader(reader, sources, c), g) for c, g in calls) for f, reader in fitting}
    return tuple(sorted((f for f, _ in fitting), key=lambda f: -score[f.name]))


def changes_like(sources: Sources, config: Config, changed: Config) -> tuple[KnownConfigFault, ...]:
    """The known faults that leave `config` behind as `changed`."""
    return tuple(
        fault for fault in KNOWN_CONFIG_FAULTS if fault.reads_like and _left_by(fault.reads_like, sources, config) == changed
    )


def _left_by(reader: Reader, sources: Sources, config: Config) -> Config:
    left = copy.deepcopy(config)
    with contextlib.suppress(Exception):  # a fault may crash in any way
        reader(sources, left)
    return left


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, type) and isinstance(other, type):
        return issubclass(one, LookupError) == issubclass(other, LookupError)
    if isinstance(one, list) and isinstance(other, list):
        return list(map(type, one)) == list(map(type, other)) and one == other
    return type(one) is type(other) and bool(one == other)
