"""`ConfigIdsContract`: property tests for code that reads the layer ids out of a draft head's config."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Final, NoReturn

from hypothesis import strategies as st

from pytest_specalign.contracts.base import Contract, Strategy, holds_for, is_open, left_open, violated
from pytest_specalign.contracts.config_faults import (
    Config,
    KnownConfigFault,
    changes_like,
    diagnose_config,
    look_up,
    put,
    read_right,
    run_reader,
    same_ids,
)
from pytest_specalign.strategies import draft_configs, layer_ids

NESTED: Final = "eagle_config.eagle_aux_hidden_state_layer_ids"
TOP_LEVEL: Final = "eagle_aux_hidden_state_layer_ids"
_N: Final = 36
_HIDDEN: Final = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigCase:
    """One config, and which keys state ids in it."""

    config: dict[str, Any]
    stated: tuple[str, ...] = ()


def _bodies() -> st.SearchStrategy[dict[str, Any]]:
    """Heads that state no ids anywhere, without an empty `eagle_config` left over or with one."""
    return draft_configs(num_layers=_N, broken="ids-missing")


def _lists() -> st.SearchStrategy[list[int]]:
    return layer_ids(_N, rule="boundary")


def _build(config: dict[str, Any], ids_by_source: dict[str, Any]) -> ConfigCase:
    made = copy.deepcopy(config)
    for source, ids in ids_by_source.items():
        put(made, source, ids)
    return ConfigCase(made, tuple(ids_by_source))


def _one_source(cls: type[ConfigIdsContract]) -> Strategy:
    stated = st.builds(lambda source, ids: {source: ids}, st.sampled_from(cls.sources), _lists())
    return st.builds(_build, _bodies(), stated)


def _repeated(cls: type[ConfigIdsContract]) -> Strategy:
    """One source states ids, one of them twice."""
    lists = st.tuples(_lists(), st.integers(0, 5)).map(lambda t: [*t[0], t[0][t[1] % len(t[0])]])
    return st.builds(lambda body, source, ids: _build(body, {source: ids}), _bodies(), st.sampled_from(cls.sources), lists)


def _two_sources(cls: type[ConfigIdsContract]) -> Strategy:
    """All sources state ids, the first ones others than the last."""
    lists = st.lists(_lists(), min_size=len(cls.sources), max_size=len(cls.sources), unique_by=tuple)
    return st.builds(lambda body, ids: _build(body, dict(zip(cls.sources, ids, strict=True))), _bodies(), lists)


def _missing(cls: type[ConfigIdsContract]) -> Strategy:
    """No source states ids: the keys are absent, or so are their parents, or the parents are null or empty."""
    parents = sorted({source.split(".")[0] for source in cls.sources if "." in source})
    without = _bodies().map(lambda config: {key: value for key, value in config.items() if key not in parents})
    fills: Any = st.dictionaries(st.sampled_from(parents), st.sampled_from([None, {}]).map(copy.copy)) if parents else st.just({})
    return st.builds(lambda config, fill: ConfigCase({**config, **fill}), without, fills)


def _null(cls: type[ConfigIdsContract]) -> Strategy:
    nulls = st.lists(st.sampled_from(cls.sources), min_size=1, unique=True).map(lambda keys: dict.fromkeys(keys))
    return st.builds(_build, _bodies(), nulls)


def _any_config(cls: type[ConfigIdsContract]) -> Strategy:
    return st.one_of(_one_source(cls), _two_sources(cls) if len(cls.sources) > 1 else st.nothing(), _missing(cls), _null(cls))


def _each_source(cls: type[ConfigIdsContract]) -> list[ConfigCase]:
    """Published lists of ids, under each source alone: 3, 4 and 5 ids."""
    lists = ([24, 30, 36], [2, 46, 91, 93], [1, 9, 17, 25, 33])
    return [_build({"hidden_size": _HIDDEN}, {source: list(ids)}) for source in cls.sources for ids in lists]


def _each_source_twice(cls: type[ConfigIdsContract]) -> list[ConfigCase]:
    return [_build({"hidden_size": _HIDDEN}, {source: [2, 18, 18, 33]}) for source in cls.sources]


def _widths(cls: type[ConfigIdsContract]) -> Strategy:
    return st.one_of(_one_source(cls), _repeated(cls))


def _bare(cls: type[ConfigIdsContract]) -> list[ConfigCase]:
    return [ConfigCase({"hidden_size": _HIDDEN})]


class ConfigIdsContract(Contract, abstract=True):
    """What a reader of draft head configs must do. Subclass it and fill in `read_layer_ids`.

    Attributes:
        sources: the dotted keys that may state ids, in order of precedence. What comes back where an earlier one is null and a
            later one is not is left to the reader.
        settings: hypothesis settings in place of the loaded profile.
    """

    sources: ClassVar[Sequence[str]] = (NESTED, TOP_LEVEL)

    @left_open
    def read_layer_ids(self, config: dict[str, Any]) -> list[int] | None:
        """The ids that `config` states, or None where it states none."""
        raise NotImplementedError

    @left_open
    def fc_in_features(self, config: dict[str, Any], hidden: int) -> int:
        """The input width of the draft's fc for a target of width `hidden`. Optional."""
        raise NotImplementedError

    @classmethod
    def declaration_problem(cls) -> str | None:
        if is_open(cls, "read_layer_ids"):
            return f"{cls.__name__} lacks `def read_layer_ids(self, config)`: the code under test, which returns the ids or None"
        if isinstance(cls.sources, str) or not cls.sources or not all(isinstance(s, str) and s for s in cls.sources):
            return f"{cls.__name__}.sources = {cls.sources!r}: dotted keys in order of precedence, such as {NESTED!r}"
        return None

    @holds_for(_one_source, examples=_each_source)
    def check_reads_each_source(self, case: ConfigCase) -> None:
        """Ids that stand in one place only are found, wherever it is."""
        self._expect(case)

    @holds_for(_two_sources, when=lambda cls: len(cls.sources) > 1)
    def check_keeps_the_precedence(self, case: ConfigCase) -> None:
        """Where every place states ids, the first one in `sources` wins."""
        self._expect(case)

    @holds_for(_repeated, examples=_each_source_twice)
    def check_keeps_duplicates(self, case: ConfigCase) -> None:
        """An id that is named twice comes back twice, or the config is refused: it never comes back once."""
        if not self._refuses(self._read(case)):
            self._expect(case)

    @holds_for(_missing, examples=_bare)
    def check_missing_ids_are_none(self, case: ConfigCase) -> None:
        """No ids anywhere is None, so that the caller can warn: never a default, never a crash."""
        self._expect(case)

    @holds_for(_null)
    def check_null_ids_are_none(self, case: ConfigCase) -> None:
        """Null is no ids."""
        self._expect(case)

    @holds_for(_any_config, examples=_each_source)
    def check_leaves_the_config_alone(self, case: ConfigCase) -> None:
        """Reading changes nothing, and the result is not the config's own list."""
        given = copy.deepcopy(case.config)
        try:
            got = self.read_layer_ids(given)
        except Exception as error:
            self._fail(case, type(error), "the ids or None", diagnose_config(self.sources, case.config, type(error)))
        if given != case.config:
            faults = changes_like(self.sources, case.config, given)
            self._fail(case, f"a config changed to {_shown(given)}", "the config as it was", faults)
        if isinstance(got, list) and any(got is look_up(given, source) for source in self.sources):
            self._fail(case, "the config's own list, so that whoever changes one changes both", "a copy", ())

    @holds_for(
        _widths,
        examples=lambda cls: [*_each_source(cls), *_each_source_twice(cls)],
        when=lambda cls: not is_open(cls, "fc_in_features"),
    )
    def check_width_agrees_with_the_ids(self, case: ConfigCase) -> None:
        """The fc input holds one state for each id: `hidden` times their number. Ids named twice may be refused."""
        ids = read_right(self.sources, case.config) or ()
        states = len(ids)
        got = self._states_wide(case)
        if got != states and not (len(set(ids)) < states and self._refuses(got)):
            seen = [(c.config, self._states_wide(c)) for c in _each_source(type(self))]
            faults = diagnose_config(self.sources, case.config, got, counts=True, seen=seen)
            self._fail(case, f"fc_in_features for {got} states", f"{states} x {_HIDDEN} = {states * _HIDDEN}", faults)

    def _expect(self, case: ConfigCase) -> None:
        __tracebackhide__ = True
        got = self._read(case)
        expected = read_right(self.sources, case.config)
        if not same_ids(got, expected):
            calls = [*_each_source(type(self)), *_bare(type(self))]
            seen = [(c.config, self._read(c)) for c in calls]
            self._fail(case, got, repr(expected), diagnose_config(self.sources, case.config, got, seen=seen))

    def _read(self, case: ConfigCase) -> Any:
        return run_reader(lambda _, config: self.read_layer_ids(config), self.sources, case.config)

    @staticmethod
    def _refuses(got: Any) -> bool:
        return isinstance(got, type) and issubclass(got, (ValueError, TypeError))

    def _states_wide(self, case: ConfigCase) -> Any:
        """For how many states the width is, or the width itself if it is no multiple, or the type of the exception."""
        width = run_reader(lambda _, config: self.fc_in_features(config, _HIDDEN), self.sources, case.config)
        return width // _HIDDEN if isinstance(width, int) and width % _HIDDEN == 0 else width

    def _fail(self, case: ConfigCase, got: Any, expected: str, faults: Sequence[KnownConfigFault]) -> NoReturn:
        __tracebackhide__ = True
        raised = isinstance(got, type)
        named = f": {faults[0].name}" if faults else ""
        lines = [
            f"the reader of layer ids goes wrong on {_shown(case.config)}{named}",
            f"  sources:  {', '.join(self.sources)}",
            f"  stated:   {', '.join(case.stated) or 'nowhere'}",
            f"  expected: {expected}",
            f"  got:      {got.__name__ if raised else got}",
        ]
        if faults:
            others = ", ".join(fault.name for fault in faults[1:])
            lines += [f"  looks like: {faults[0].format()}"] + ([f"  less likely: {others}"] if others else [])
        lines.append(
            f"  next: {faults[0].remedy}" if faults else "  looks like: no known fault\n  next: read this config by hand."
        )
        violated("\n".join(lines))


def _shown(config: Config) -> str:
    """The parts of a config that may state ids: the rest would fill the screen."""
    parts = {key: value for key, value in config.items() if "config" in key or "layer_ids" in key or key == "hidden_size"}
    return repr(parts)
