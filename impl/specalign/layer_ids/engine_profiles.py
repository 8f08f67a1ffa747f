"""The dataclasses of an engine profile: one field a fact. `engines.py` loads them from `engine_data/*.toml`.

A profile has two halves that vary independently. `CaptureProfile` is the target's side (by engine, version, kind and family of
the target): ids to captured states. `DraftProfile` is the draft's side (by engine, version, kind and draft architecture): which
places of the config it reads, which weights it loads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from specalign.layer_ids.rules import RULES, Rule


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """One engine or trainer.

    Attributes:
        role: "server", "trainer" or "reference"; only servers load heads, so only they have weight and norm findings.
        checked: the versions that are checked when none is named, one for each way of behaving, oldest first; "" for a project
            without versions.
        converts_speculators: the engine converts speculators' format on load.
        remedies: kind → what a user of this engine sets to get the ids right, unless a row says it better.
    """

    name: str
    title: str
    role: str
    checked: tuple[str, ...]
    converts_speculators: bool = False
    remedies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """Target models that engines implement in one piece of code, by public names."""

    name: str
    architectures: tuple[str, ...]
    model_types: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class CaptureProfile:
    """What an engine version does with the ids for one kind of head on some target families.

    Attributes:
        rule: name in `RULES`, from ids to boundaries; `place_rules` overrides it for ids that come from a certain place.
        default: what None stands for: the "rule"'s default, "refused", or "dflash-even" (see `dflash_even`).
        drafts: patterns of draft architectures that the row is for.
        inner: the row describes classes inside the engine that are never a target by themselves; it is there for
            `specalign engines verify`.
        classes: `module:Class` of such classes, and of others that carry the setter without being public architectures.
        setter: what the engine's own setter raises, as far as it does: "none" = exception for None, "raises" = exception for a
            stored index above n + "limit", "always" = exception for every list.
        stored: the index that the engine's setter stores, minus the boundary: 0 where the capture runs before the block of that
            index, -1 where it runs after.
        reach: the highest boundary that is captured: "n", "n-1", or "none" where nothing ever is.
        boundary_0: "" where the embedding output is captured as it should be, "dropped", "aliased" (captured without a copy and
            overwritten by later blocks), or what happens instead.
        unreachable: what becomes of a state out of reach: "dropped" without a word, or what happens instead.
        captured: what is captured in place of the residual stream, or "".
        order, duplicates: as in `Rule`; duplicates may also be "error".
        negative: what a negative id does.
        pipeline: ids on earlier pipeline stages: "last-stage-only", "forwarded", "refused", or "unchecked".
        default_needs: fewest layers of the target for which the engine serves its default, 0 where it does not look.
        range_checked: ids outside 0..n-1 are refused at start (not those from dspark_target_layer_ids).
        empty_is_unset: an empty list counts as none; elsewhere it captures nothing and breaks the first request.
        exactly: the only number of ids that is taken, 0 where any is.
        ids_from: config places read for capture, in order; "cli:--flag" is a flag of the engine.
        supported: False where the engine cannot capture on these targets at all.
        remedy: the engine's own flag or config key.
        source, grade: where the facts are from; R read, X executed, T stated in public, I inferred.
    """

    engine: str
    versions: str
    kinds: tuple[str, ...]
    families: tuple[str, ...]
    rule: str
    source: str
    grade: str
    place_rules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default: str = "rule"
    drafts: tuple[str, ...] = ("*",)
    inner: bool = False
    classes: tuple[str, ...] = ()
    setter: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stored: int = 0
    reach: str = "n"
    boundary_0: str = ""
    unreachable: str = "dropped"
    order: str = "layer"
    duplicates: str = "collapse"
    negative: str = "unchecked"
    pipeline: str = "unchecked"
    default_needs: int = 0
    range_checked: bool = False
    empty_is_unset: bool = False
    exactly: int = 0
    ids_from: tuple[str, ...] = ()
    supported: bool = True
    captured: str = ""
    remedy: str = ""
    note: str = ""

    def rule_for(self, place: str | None) -> Rule:
        """The rule, without this profile's limits, for ids that were read from `place`."""
        return RULES[self.rule if place is None else self.place_rules.get(place, self.rule)]

    def as_rule(self, place: str | None = None) -> Rule:
        """The rule for ids from `place`, with this profile's limits."""
        return self.rule_for(place).narrowed(
            order=self.order,  # type: ignore[arg-type]  # the loader checked the values
            duplicates="refuse" if self.duplicates == "error" else self.duplicates,  # type: ignore[arg-type]
            reaches_n=self.reach == "n",
            refuse_default=self.default != "rule",
        )


@dataclasses.dataclass(frozen=True, slots=True)
class DraftProfile:
    """How an engine version reads a draft head of some architectures.

    Attributes:
        reads: setting → config places that are read for it, in order; an empty list means that the engine ignores the setting,
            a missing key that nobody has looked.
        defaults: setting → value that the engine takes when the file says nothing.
        ids_width: places that give the number of chunks of fc's input, in order; `width_default` where none is set, 0 where
            nobody has looked.
        buffer_width: the same for the buffer that carries the states, where an engine computes it elsewhere.
        both_norms: "both-applied", "error", …, when norm_before_fc and fc_norm are set together.
        supported: False where the engine refuses heads of these architectures.
        fc_skipped_when_equal_width: fc and its norms do not run when the states are as wide as the draft.
        target_hidden_size_null: "error" where a null there breaks the start.
        lm_head_missing, d2t, d2t_missing, unknown_weights, missing_weights: see `docs/engines.md`.
        weights: patterns of tensor names that are loaded; `weights_when`: pattern → setting that must be on for it to be loaded.
        remedies: finding code → the engine's own flag or config key.
        served_as_eagle: what happens when the head is served with the algorithm EAGLE.
    """

    engine: str
    versions: str
    kinds: tuple[str, ...]
    architectures: tuple[str, ...]
    source: str
    grade: str
    reads: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ids_width: tuple[str, ...] = ()
    buffer_width: tuple[str, ...] = ()
    width_default: int = 0
    width_check: str = "none"
    supported: bool = True
    both_norms: str = ""
    fc_skipped_when_equal_width: bool = False
    target_hidden_size_null: str = ""
    lm_head_missing: str = ""
    d2t: str = ""
    d2t_missing: str = ""
    unknown_weights: str = ""
    missing_weights: str = ""
    weights: tuple[str, ...] = ()
    weights_when: Mapping[str, str] = dataclasses.field(default_factory=dict)
    served_as_eagle: str = ""
    remedies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class EngineProfile:
    """Both halves for one engine version, kind, target and draft architecture.

    Attributes:
        engine, version: what was asked for.
        profiled: the version whose facts these are; differs from `version` where that one has no row.
        capture, draft: the two halves, or None where the engine has no row.
    """

    engine: str
    version: str
    profiled: str
    capture: CaptureProfile | None
    draft: DraftProfile | None

    @property
    def label(self) -> str:
        """`sglang==0.5.23`, or the bare name where the engine has no versions here."""
        return f"{self.engine}=={self.version}" if self.version else self.engine
