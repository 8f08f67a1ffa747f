"""An engine of which a test says every fact, so that what is found follows from the test alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from specalign.layer_ids.draft_config import KINDS, Kind
from specalign.layer_ids.engine_profiles import CaptureProfile, DraftProfile, Engine, Family
from specalign.layer_ids.engines import EngineTable
from specalign.layer_ids.findings import Finding, Severity
from specalign.layer_ids.preflight import CheckReport, check
from tests.unit.checks.scenarios import GPT_OSS, HEAD, IDS, draft_spec, target_spec

NAME = "made-up==1"
FAMILY = Family("gpt_oss", ("GptOssForCausalLM",))


def engine(
    capture: Mapping[str, Any] | None = MappingProxyType({}),
    draft: Mapping[str, Any] | None = MappingProxyType({}),
    *,
    checked: tuple[str, ...] = ("1",),
    role: str = "server",
    remedies: Mapping[str, str] | None = None,
) -> EngineTable:
    """A table with one engine: it reads boundaries at the top level, unless `capture` or `draft` say else (None: no such row)."""
    captures = {"engine": "made-up", "versions": "*", "kinds": KINDS, "families": ("*",), "rule": "boundary", "ids_from": (IDS,)}
    drafts = {"engine": "made-up", "versions": "*", "kinds": KINDS, "architectures": ("*",)}
    known = {"source": "the test", "grade": "I"}
    return EngineTable(
        engines={"made-up": Engine("made-up", "an engine of these tests", role, checked, remedies=remedies or {})},
        families={FAMILY.name: FAMILY},
        captures=() if capture is None else (CaptureProfile(**{**captures, **known, **capture}),),
        drafts=() if draft is None else (DraftProfile(**{**drafts, **known, **draft}),),
    )


def report(
    table: EngineTable,
    config: Mapping[str, Any] = HEAD,
    target: Mapping[str, Any] = GPT_OSS,
    *,
    tensors: Mapping[str, Sequence[int]] | None = None,
    d2t: Sequence[int] | None = None,
    kind: Kind | None = None,
    **options: Any,
) -> CheckReport:
    """The check of a pair on the engine of `table`."""
    whole = check(draft_spec(config, tensors, d2t, kind), target_spec(target), table=table, **{"engines": [NAME], **options})
    assert all(isinstance(f.severity, Severity) for f in whole.findings)
    return whole


def found(code: str, table: EngineTable, *pair: Mapping[str, Any], **options: Any) -> list[Finding]:
    """The findings of one code about the engine of `table`."""
    return [f for f in report(table, *pair, **options).of(NAME) if f.code == code]


def the(code: str, table: EngineTable, *pair: Mapping[str, Any], **options: Any) -> Finding:
    """The one finding of that code."""
    (only,) = found(code, table, *pair, **options)
    return only
