"""The calls that `CaptureContract` makes: strategies and explicit examples, each for one leaf class."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pytest_specalign.contracts.base import Strategy, is_open
from pytest_specalign.contracts.capture_looks import Captured
from pytest_specalign.contracts.known_faults import Raised
from pytest_specalign.contracts.probe import VOCABULARY, ProbeLayout, value_of
from pytest_specalign.contracts.probe_split import RankKind
from specalign.layer_ids import POST_NORM, LayerIdError, State, format_states
from specalign.layer_ids.rules import Duplicates, Order, in_layer_order

from hypothesis import strategies as st  # isort: skip

if TYPE_CHECKING:
    from pytest_specalign.contracts.capture import CaptureContract

Call: TypeAlias = Literal["capture", "capture_stages", "capture_ranks"]
_TOKENS: Final = (3, 1, 4, 15, 9)


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """What an implementation says of itself: see `CaptureContract`."""

    order: Order = "config"
    duplicates: Duplicates = "refuse"
    reaches_n: bool = True
    post_norm: bool = False

    def arranged(self, states: Sequence[State]) -> list[State]:
        """The states in the order and number in which they must come, unchecked."""
        kept = list(dict.fromkeys(states)) if self.duplicates == "collapse" else list(states)
        return in_layer_order(kept, 10**6) if self.order == "layer" else kept

    def refusal(self, states: Sequence[State], num_layers: int) -> str | None:
        """Why the states must be refused, or None."""
        outside = [s for s in states if s is not POST_NORM and not 0 <= s <= num_layers]
        if outside:
            return f"boundary {outside[0]} does not exist: {num_layers} blocks have boundaries 0..{num_layers}"
        if num_layers in states and not self.reaches_n:
            return f"boundary {num_layers} is declared out of reach"
        if len(set(states)) < len(states) and self.duplicates == "refuse":
            return "a state is asked for twice"
        return None

    def format(self) -> str:
        reach = "reached" if self.reaches_n else "never reached"
        post_norm = "supported" if self.post_norm else "never asked for"
        return f"order {self.order}, duplicates {self.duplicates}, boundary n {reach}, POST_NORM {post_norm}"


@dataclasses.dataclass(frozen=True, slots=True)
class CaptureCase:
    """One call.

    Attributes:
        layout: the probe.
        states: what is asked for, in order.
        declared: what the implementation says of itself.
        call: which of the three methods is called.
        cuts: global numbers of the blocks that start a pipeline stage, the first stage apart.
        kind: how the ranks share a state.
        rank: whose result is being judged.
    """

    layout: ProbeLayout
    states: tuple[State, ...]
    declared: Declared = Declared()
    call: Call = "capture"
    cuts: tuple[int, ...] = ()
    kind: RankKind = "partial"
    rank: int = 0

    def right(self) -> Captured:
        reason = self.declared.refusal(self.states, self.layout.num_layers)
        if reason is not None:
            return Raised(LayerIdError, reason)
        return tuple(value_of(state) for state in self.declared.arranged(self.states))

    def format(self) -> str:
        given = {"capture": "probe", "capture_stages": "stages", "capture_ranks": "ranks"}[self.call]
        return f"{self.call}({given}, {format_states(self.states)})"

    def where(self) -> str:
        text = self.layout.format()
        if self.cuts:
            text += f", stages cut at {', '.join(map(str, self.cuts))}"
        if self.call == "capture_ranks":
            shared = "sums owed" if self.kind == "partial" else "rows scattered"
            text += f", 2 tensor-parallel ranks with {shared}, rank {self.rank}"
        return text


def declared_by(cls: type[CaptureContract]) -> Declared:
    return Declared(cls.order, cls.duplicates, cls.reaches_n, cls.post_norm)


def layouts(cls: type[CaptureContract], **fixed: Any) -> st.SearchStrategy[ProbeLayout]:
    """Probes of the class, with some things fixed. Shrinks towards plain blocks, the first dtype and few rows."""
    drawn: dict[str, Any] = {
        "style": st.sampled_from(cls.styles),
        "in_place": st.just("never"),
        "dtype": st.sampled_from(cls.dtypes),
        "tokens": st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6).map(tuple),
    }
    drawn |= {name: st.just(value) for name, value in fixed.items() if not isinstance(value, st.SearchStrategy)}
    drawn |= {name: value for name, value in fixed.items() if isinstance(value, st.SearchStrategy)}
    return st.builds(
        ProbeLayout,
        num_layers=st.just(cls.num_layers),
        hidden_size=st.just(cls.hidden_size),
        device=st.just(cls.device()),
        **drawn,
    )


def layout_of(cls: type[CaptureContract], **changes: Any) -> ProbeLayout:
    fields: dict[str, Any] = {"style": cls.styles[0], "dtype": cls.dtypes[0], "tokens": _TOKENS} | changes
    return ProbeLayout(num_layers=cls.num_layers, hidden_size=cls.hidden_size, device=cls.device(), **fields)


def reachable(cls: type[CaptureContract]) -> range:
    return range(cls.num_layers + 1 if cls.reaches_n else cls.num_layers)


def sets_of_states(cls: type[CaptureContract], **sizes: int) -> st.SearchStrategy[tuple[State, ...]]:
    """Different states in layer order, `POST_NORM` among them where it is supported."""
    pool: list[State] = [*reachable(cls), *([POST_NORM] if cls.post_norm else [])]
    bounds = {"min_size": 1, "max_size": 4} | sizes
    chosen = st.lists(st.sampled_from(pool), unique=True, **bounds)  # type: ignore[arg-type]
    return chosen.map(lambda states: tuple(in_layer_order(states, cls.num_layers)))


def cases(
    cls: type[CaptureContract], states: st.SearchStrategy[Any], layout: st.SearchStrategy[ProbeLayout] | None = None
) -> Strategy:
    return st.builds(CaptureCase, layouts(cls) if layout is None else layout, states, st.just(declared_by(cls)))


def _lists(cls: type[CaptureContract]) -> list[tuple[State, ...]]:
    """The default triple, the triple that ends at n, both ends, and the shapes of published heads in little."""
    n = cls.num_layers
    wanted: list[tuple[State, ...]] = [(2, n // 2, n - 3), (n // 2, n - 2, n), (0, n), (n - 1,), (1, n // 2), (0,), (n,)]
    wanted += [(n, POST_NORM), (1, POST_NORM)] if cls.post_norm else []
    declared = declared_by(cls)
    return [s for s in wanted if declared.refusal(s, n) is None]


def plain_examples(cls: type[CaptureContract]) -> list[CaptureCase]:
    layouts_tried = [layout_of(cls, style=style) for style in cls.styles]
    return [CaptureCase(layout, states, declared_by(cls)) for layout in layouts_tried for states in _lists(cls)]


def anything(cls: type[CaptureContract]) -> Strategy:
    return cases(cls, sets_of_states(cls))


def shuffled(cls: type[CaptureContract]) -> Strategy:
    """At least two states, not in layer order."""
    lists = sets_of_states(cls, min_size=2).flatmap(
        lambda states: st.permutations(states).map(tuple).filter(lambda p: p != states)
    )
    return cases(cls, lists)


def order_examples(cls: type[CaptureContract]) -> list[CaptureCase]:
    return [CaptureCase(layout_of(cls), (5, 1, 3), declared_by(cls))] if cls.num_layers > 5 else []


def repeated(cls: type[CaptureContract]) -> Strategy:
    lists = sets_of_states(cls, max_size=3).flatmap(lambda states: st.sampled_from(states).map(lambda s: (*states, s)))
    return cases(cls, lists)


def with_boundary_n(cls: type[CaptureContract]) -> Strategy:
    n = cls.num_layers
    lists = st.lists(st.integers(0, n - 1), unique=True, max_size=3).map(lambda ids: (*sorted(ids), n))
    return cases(cls, lists)


def last_examples(cls: type[CaptureContract]) -> list[CaptureCase]:
    n, declared = cls.num_layers, declared_by(cls)
    return [CaptureCase(layout_of(cls, style=s), ids, declared) for s in cls.styles for ids in ((n - 3, n), (n,))]


def with_post_norm(cls: type[CaptureContract]) -> Strategy:
    lists = st.lists(st.sampled_from(reachable(cls)), unique=True, max_size=3)
    return cases(cls, lists.map(lambda ids: (*sorted(ids), POST_NORM)))


def post_norm_examples(cls: type[CaptureContract]) -> list[CaptureCase]:
    wanted = [(POST_NORM,), (1, POST_NORM), *([(cls.num_layers, POST_NORM)] if cls.reaches_n else [])]
    return [CaptureCase(layout_of(cls), states, declared_by(cls)) for states in wanted]


def spoiled(cls: type[CaptureContract]) -> Strategy:
    """Blocks that change tensors which they were handed."""
    return cases(cls, sets_of_states(cls), layouts(cls, in_place=st.sampled_from(changing(cls))))


def spoiled_examples(cls: type[CaptureContract]) -> list[CaptureCase]:
    states, declared = tuple(reachable(cls)), declared_by(cls)
    return [CaptureCase(layout_of(cls, in_place=p, style=s), states, declared) for p in changing(cls) for s in cls.styles]


def changing(cls: type[CaptureContract]) -> list[str]:
    return [in_place for in_place in cls.in_place if in_place != "never"]


def idle(cls: type[CaptureContract]) -> Strategy:
    return cases(cls, sets_of_states(cls), layouts(cls, tokens=(), in_place=st.sampled_from(cls.in_place)))


def missing_states(cls: type[CaptureContract]) -> Strategy:
    """Numbers just outside of 0..n, alone or beside good ones."""
    n = cls.num_layers
    outside = st.sampled_from([n + 1, -1, n + 2, -2, -n - 1])
    lists = st.builds(lambda good, bad: (*good, bad), st.one_of(st.just(()), sets_of_states(cls, max_size=2)), outside)
    return cases(cls, lists)


def missing_examples(cls: type[CaptureContract]) -> list[CaptureCase]:
    n = cls.num_layers
    return [CaptureCase(layout_of(cls), states, declared_by(cls)) for states in ((n + 1,), (-1,), (1, n + 1), (1, -1))]


def failing(cls: type[CaptureContract]) -> Strategy:
    """A block that fails below the highest boundary asked for, so that code which stops early meets it too."""
    top = reachable(cls)[-1]
    states = sets_of_states(cls).map(lambda chosen: _merged(chosen, (top,)))
    return cases(cls, states, layouts(cls, fails_at=st.integers(0, top - 1)))


def split(cls: type[CaptureContract]) -> Strategy:
    """2 and 3 stages, with states on their edges."""
    inner = st.lists(st.integers(1, cls.num_layers - 1), unique=True, min_size=1, max_size=2).map(lambda c: tuple(sorted(c)))

    def with_states(cuts: tuple[int, ...]) -> Strategy:
        edges = st.lists(st.sampled_from(cuts), unique=True)
        states = st.builds(_merged, sets_of_states(cls), edges)
        return cases(cls, states).map(lambda case: dataclasses.replace(case, call="capture_stages", cuts=cuts))

    return inner.flatmap(with_states)


def _merged(states: Iterable[State], more: Iterable[State]) -> tuple[State, ...]:
    return tuple(in_layer_order(set(states) | set(more), 10**6))


def split_examples(cls: type[CaptureContract]) -> list[CaptureCase]:
    n, declared = cls.num_layers, declared_by(cls)
    cuts: list[tuple[int, ...]] = [(n // 2,), (n // 3, 2 * n // 3)]
    found = []
    for cut in cuts:
        last = [s for s in (cut[-1] + 1,) if s in reachable(cls)]
        for states in ((1, *cut, *last), (1, *last), tuple(reachable(cls)), cut):
            ordered = _merged(states, ())
            found += [CaptureCase(layout_of(cls, style=s), ordered, declared, "capture_stages", cut) for s in cls.styles]
    return found


def ranked(cls: type[CaptureContract]) -> Strategy:
    layout = layouts(cls, style="residual", in_place="never")
    drawn = cases(cls, sets_of_states(cls), layout)
    kinds = st.sampled_from(cls.rank_kinds)
    return st.builds(lambda case, kind: dataclasses.replace(case, call="capture_ranks", kind=kind), drawn, kinds)


def ranked_examples(cls: type[CaptureContract]) -> list[CaptureCase]:
    layout, states = layout_of(cls, style="residual"), tuple(reachable(cls))
    return [CaptureCase(layout, states, declared_by(cls), "capture_ranks", kind=kind) for kind in cls.rank_kinds]


def implements(name: str) -> Callable[[Any], bool]:
    return lambda cls: not is_open(cls, name)
