"""Findings: what a check reports, and the table of their codes."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Final


class Severity(enum.StrEnum):
    """How bad: an ERROR makes `specalign check` exit 1, WARNING and INFO do not."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One fact that a check reports.

    Attributes:
        code: a key of `CODES`; stable.
        severity: see `Severity`.
        what: one sentence.
        where: the config key, tensor or call that it is about.
        how_much: the two sides in figures, or "".
        next: what to do, with the engine's own flag or key where it has one.
        engine: `sglang==0.5.23`, or None for a finding about the files themselves.
    """

    code: str
    severity: Severity
    what: str
    where: str
    next: str
    how_much: str = ""
    engine: str | None = None

    @property
    def concern(self) -> str:
        """One of `CONCERNS`."""
        return CODES[self.code][0]

    def format(self) -> str:
        """Two or three lines of plain text."""
        figures = f" ({self.how_much})" if self.how_much else ""
        return f"{self.severity.value} {self.code}: {self.what}{figures}\n    at {self.where}\n    next: {self.next}"


CONCERNS: Final = ("ids", "widths", "norms", "weights", "settings", "pipeline")

CODES: Final[Mapping[str, tuple[str, str]]] = {
    # code: (concern, one line)
    "ids-guessed": ("ids", "the config names no layer ids, the engine takes its default"),
    "ids-not-read": ("ids", "the ids stand at a place that the engine does not read for capture"),
    "ids-conflict": ("ids", "two places of the config hold different ids"),
    "ids-invalid": ("ids", "an id that no engine could mean"),
    "convention-undecidable": ("ids", "the ids may be boundaries or block outputs, and nothing says which"),
    "ids-shifted": ("ids", "the engine captures other states than the head was trained on"),
    "ids-refused": ("ids", "the engine raises on these ids"),
    "ids-reordered": ("ids", "the engine concatenates the states in another order than the config names them"),
    "ids-collapsed": ("ids", "ids named twice become one state, or the engine refuses them"),
    "state-unreachable": ("ids", "the engine never captures a state that the ids name"),
    "state-corrupt": ("ids", "what the engine captures is not the residual stream"),
    "draft-unsupported": ("ids", "the engine cannot load a head of this architecture"),
    "draft-unprofiled": ("ids", "nobody profiled how the engine reads heads of this architecture"),
    "default-too-shallow": ("ids", "the default ids need a target of at least 7 layers"),
    "engines-disagree": ("ids", "the same files give different states on different engines"),
    "aux-state-off": ("ids", "use_aux_hidden_state is false: the head takes POST_NORM"),
    "eagle3-served-as-eagle": ("ids", "an EAGLE3 head served with the algorithm EAGLE"),
    "target-unsupported": ("ids", "the engine cannot capture states on this target"),
    "target-unprofiled": ("ids", "nobody profiled the engine on this target family"),
    "version-unprofiled": ("ids", "nobody profiled this version of the engine"),
    "width-mismatch": ("widths", "states times width differ from what fc takes"),
    "width-source-differs": ("widths", "the engine reads ids from one place for capture and from another for the width"),
    "target-hidden-size-null": ("widths", "target_hidden_size is null and the engine multiplies it"),
    "target-mismatch": ("widths", "the head was made for a target of another size"),
    "norm-ignored": ("norms", "the config asks for a norm and the engine does not apply it, or the other way round"),
    "norms-both-set": ("norms", "norm_before_fc and fc_norm are both on"),
    "norm-weight-without-flag": ("norms", "the weights hold a norm that no flag turns on"),
    "norm-flag-without-weight": ("norms", "a flag turns on a norm whose weight the file lacks"),
    "weight-unread": ("weights", "the engine drops tensors of the file"),
    "weight-missing": ("weights", "the file lacks a tensor that the engine needs"),
    "weights-not-read": ("weights", "no safetensors headers at hand, so nothing about weights was checked"),
    "lm-head-missing": ("weights", "draft_vocab_size is set and the file has no lm_head"),
    "weight-shape": ("weights", "a tensor has another shape than the config says"),
    "d2t-missing": ("weights", "a small draft vocabulary without d2t"),
    "d2t-out-of-range": ("weights", "d2t points outside the target's vocabulary"),
    "d2t-absolute": ("weights", "d2t holds token ids where the engine expects offsets"),
    "head-dim-ignored": ("settings", "the engine ignores head_dim"),
    "rope-theta-ignored": ("settings", "the engine does not read rope theta where the config has it"),
    "rope-scaling-ignored": ("settings", "the engine does not read rope scaling where the config has it"),
    "rope-conflict": ("settings", "rope is stated twice with different values"),
    "attention-bias-ignored": ("settings", "the engine drops the biases of the draft's attention"),
    "sliding-window-ignored": ("settings", "the engine ignores the draft's sliding window or layer types"),
    "pipeline-drops-ids": ("pipeline", "states of earlier pipeline stages are never captured"),
    "pipeline-unchecked": ("pipeline", "nobody profiled the engine's capture across pipeline stages"),
}
"""Every code with its concern and what it means. `docs/check.md` shows an example of each."""


def finding(
    code: str, severity: Severity, what: str, *, where: str, next: str, how_much: str = "", engine: str | None = None
) -> Finding:
    """A `Finding` whose code is in the table; a code that is not is a bug of ours and raises KeyError."""
    CODES[code]
    return Finding(code, severity, one_line(what), one_line(where), one_line(next), one_line(how_much), engine)


def one_line(text: str) -> str:
    """`text` with control characters escaped: names out of a stranger's file must not start a line of ours."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
