"""The calls that `DraftNormContract` makes: strategies and explicit examples, each for one leaf class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pytest_specalign.contracts.base import Strategy
from pytest_specalign.contracts.draft_heads import FC_NORM, HIDDEN, NORM_BEFORE_FC, VOCABULARY, DraftCase, Norms

from hypothesis import strategies as st  # isort: skip

if TYPE_CHECKING:
    from pytest_specalign.contracts.draft_norm import DraftNormContract

_SEEDS: Final = st.integers(0, 2**16)
_WIDTHS: Final = (HIDDEN, 12)
_FLAGS: Final[dict[Norms, tuple[str, ...]]] = {
    "none": (),
    "whole": (NORM_BEFORE_FC,),
    "chunk": (FC_NORM,),
    "both": (NORM_BEFORE_FC, FC_NORM),
}
SMALL_VOCABULARY: Final = 40


def places(cls: type[DraftNormContract], flag: str) -> Sequence[str]:
    return cls.norm_before_fc_places if flag == NORM_BEFORE_FC else cls.fc_norm_places


def at_last_place(cls: type[DraftNormContract], norms: Norms) -> tuple[tuple[str, Any], ...]:
    """The flags of `norms`, each at the top level or wherever else it is looked for last."""
    return tuple((places(cls, flag)[-1], True) for flag in _FLAGS[norms])


def with_norms(*norms: Norms) -> Any:
    """Heads with these norms: 1 to 5 states, of the head's width or another."""

    def heads(cls: type[DraftNormContract]) -> Strategy:
        return st.sampled_from(norms).flatmap(
            lambda chosen: st.builds(
                DraftCase,
                norms=st.just(chosen),
                chunks=st.integers(2, 5),
                width=st.sampled_from(_WIDTHS),
                rows=st.integers(1, 4),
                flags=st.just(at_last_place(cls, chosen)),
                seed=_SEEDS,
            )
        )

    return heads


def example_with(norms: Norms) -> Any:
    return lambda cls: [DraftCase(norms, flags=at_last_place(cls, norms)), DraftCase(norms, 4, flags=at_last_place(cls, norms))]


def flag_places(cls: type[DraftNormContract]) -> Strategy:
    """One norm, asked for at each of its places alone."""
    return st.builds(lambda case, seed: dataclasses.replace(case, seed=seed), st.sampled_from(flag_place_examples(cls)), _SEEDS)


def flag_place_examples(cls: type[DraftNormContract]) -> list[DraftCase]:
    wanted: tuple[tuple[Norms, str], ...] = (("whole", NORM_BEFORE_FC), ("chunk", FC_NORM))
    return [DraftCase(norms, flags=((place, True),)) for norms, flag in wanted for place in places(cls, flag)]


def two_places(cls: type[DraftNormContract]) -> Strategy:
    return st.sampled_from(two_place_examples(cls))


def two_place_examples(cls: type[DraftNormContract]) -> list[DraftCase]:
    """Two places that contradict each other: the first one wins."""
    wanted: tuple[tuple[Norms, str], ...] = (("whole", NORM_BEFORE_FC), ("chunk", FC_NORM))
    found = []
    for norms, flag in wanted:
        first, *others = places(cls, flag)
        for other in others:
            found.append(DraftCase(norms, flags=((first, True), (other, False))))
            found.append(DraftCase("none", flags=((first, False), (other, True))))
            found.append(DraftCase(norms, flags=((first, None), (other, True))))
    return found


def has_two_places(cls: type[DraftNormContract]) -> bool:
    return len(cls.norm_before_fc_places) > 1 or len(cls.fc_norm_places) > 1


def equal_widths(cls: type[DraftNormContract]) -> Strategy:
    return st.builds(lambda case, seed: dataclasses.replace(case, seed=seed), st.sampled_from(equal_examples(cls)), _SEEDS)


def equal_examples(cls: type[DraftNormContract]) -> list[DraftCase]:
    """One state, as wide as the head, so that fc is square."""
    wanted: tuple[Norms, ...] = ("whole", "chunk", "none")
    return [DraftCase(norms, 1, flags=at_last_place(cls, norms)) for norms in wanted]


def tiny(cls: type[DraftNormContract]) -> Strategy:
    wanted: tuple[Norms, ...] = ("whole", "chunk")
    return st.sampled_from(wanted).flatmap(
        lambda norms: st.builds(
            DraftCase,
            norms=st.just(norms),
            flags=st.just(at_last_place(cls, norms)),
            eps=st.sampled_from([1e-5, 1e-6]),
            tiny=st.just(True),
            seed=_SEEDS,
        )
    )


def null_width(cls: type[DraftNormContract]) -> Strategy:
    return st.builds(lambda case, seed: dataclasses.replace(case, seed=seed), st.sampled_from(null_examples(cls)), _SEEDS)


def null_examples(cls: type[DraftNormContract]) -> list[DraftCase]:
    wanted: tuple[Norms, ...] = ("none", "whole")
    return [DraftCase(norms, flags=(*at_last_place(cls, norms), ("target_hidden_size", None))) for norms in wanted]


def idle(cls: type[DraftNormContract]) -> Strategy:
    norms: tuple[Norms, ...] = ("none", "whole", "chunk")
    return st.sampled_from([DraftCase(n, rows=0, flags=at_last_place(cls, n)) for n in norms])


_HEADS: Final[Callable[[Any], Strategy]] = with_norms("none", "whole", "chunk")


def any_head(cls: type[DraftNormContract]) -> Strategy:
    return _HEADS(cls)


def probes(cls: type[DraftNormContract]) -> list[DraftCase]:
    """Calls that tell the known faults apart."""
    wanted: tuple[Norms, ...] = ("none", "whole", "chunk")
    plain = [DraftCase(norms, chunks, flags=at_last_place(cls, norms), seed=7) for norms in wanted for chunks in (3, 4)]
    return [*plain, *flag_place_examples(cls), *equal_examples(cls), *null_examples(cls)]


def flagged(flag: str) -> Any:
    """One flag absent, false and true, at the top level and nested."""

    def heads(cls: type[DraftNormContract]) -> Strategy:
        return st.builds(lambda case, seed: dataclasses.replace(case, seed=seed), st.sampled_from(flagged_examples(flag)), _SEEDS)

    return heads


def flagged_examples(flag: str) -> list[DraftCase]:
    stated: list[tuple[tuple[str, Any], ...]] = [(), ((flag, False),), ((flag, True),), ((f"eagle_config.{flag}", True),)]
    return [DraftCase(flags=flags) for flags in stated]


def stated(case: DraftCase, flag: str) -> bool:
    """Whether a flag is on: nested before top level, absent and null are off."""
    found = dict(case.flags)
    nested = found.get(f"eagle_config.{flag}")
    return bool(found.get(flag) if nested is None else nested)


@dataclasses.dataclass(frozen=True, slots=True)
class TokenCase:
    """A d2t and draft tokens of some shape."""

    offsets: tuple[int, ...]
    tokens: tuple[int, ...]
    columns: int = 1


def token_maps(cls: type[DraftNormContract]) -> Strategy:
    """Ascending choices of target tokens; draft tokens in one or two columns."""
    kept = st.sets(st.integers(0, VOCABULARY - 1), min_size=2, max_size=12).map(sorted)

    def made(targets: list[int]) -> Strategy:
        offsets = tuple(target - draft for draft, target in enumerate(targets))
        tokens = st.lists(st.integers(0, len(targets) - 1), max_size=6).map(lambda t: tuple(t) * 2)
        return st.builds(TokenCase, st.just(offsets), tokens, st.sampled_from([1, 2]))

    return kept.flatmap(made)


def token_examples(cls: type[DraftNormContract]) -> list[TokenCase]:
    return [TokenCase((0, 2, 2, 5, 9), (0, 1, 2, 3, 4)), TokenCase((0, 0, 0), (2, 1, 0)), TokenCase((1, 2, 3), (0, 1, 2))]
