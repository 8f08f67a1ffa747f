"""What a check gets to see."""

from __future__ import annotations

import dataclasses

from specalign.layer_ids.draft_config import DraftSpec
from specalign.layer_ids.engine_profiles import Engine
from specalign.layer_ids.findings import Finding, Severity, finding
from specalign.layer_ids.meaning import Meaning
from specalign.layer_ids.target_config import TargetSpec
from specalign.layer_ids.view import EngineView


@dataclasses.dataclass(frozen=True, slots=True)
class FileCase:
    """The pair itself: draft, target, and what the ids were meant to say."""

    draft: DraftSpec
    target: TargetSpec
    meaning: Meaning


@dataclasses.dataclass(frozen=True, slots=True)
class EngineCase:
    """The pair as one engine reads it."""

    draft: DraftSpec
    target: TargetSpec
    meaning: Meaning
    engine: Engine
    view: EngineView
    pp_size: int

    @property
    def serves(self) -> bool:
        """The engine loads and runs heads (a trainer only writes or trains them)."""
        return self.engine.role == "server"

    def found(self, code: str, severity: Severity, what: str, *, where: str, next: str, how_much: str = "") -> Finding:
        """A finding about this engine; nothing is an error for a trainer, which does not serve the head."""
        severity = severity if self.serves or severity is Severity.INFO else Severity.WARNING
        return finding(code, severity, what, where=where, next=next, how_much=how_much, engine=self.view.label)

    def capture_remedy(self, fallback: str) -> str:
        """The engine's own remedy on the target's side, or `fallback`."""
        capture = self.view.profile.capture
        own = capture.remedy if capture is not None else ""
        return own or self.engine.remedies.get(self.draft.kind) or fallback

    def draft_remedy(self, code: str, fallback: str) -> str:
        """The engine's own remedy for a finding on the draft's side, or `fallback`."""
        draft = self.view.profile.draft
        return draft.remedies.get(code, fallback) if draft is not None else fallback
