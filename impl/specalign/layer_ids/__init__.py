"""Layer ids: what a list of ids in a draft head's config means, and what each engine makes of it.

Pure Python: this room imports neither torch nor numpy.
"""

from specalign.layer_ids.conventions import POST_NORM, Convention, State, format_states
from specalign.layer_ids.convert import (
    Inference,
    default_ids,
    dflash_boundaries,
    eagle3_boundaries,
    from_boundaries,
    infer_convention,
    to_boundaries,
    to_states,
)
from specalign.layer_ids.errors import LayerIdError
from specalign.layer_ids.rules import RULES, Rule, rule_named

__all__ = [
    "POST_NORM",
    "RULES",
    "Convention",
    "Inference",
    "LayerIdError",
    "Rule",
    "State",
    "default_ids",
    "dflash_boundaries",
    "eagle3_boundaries",
    "format_states",
    "from_boundaries",
    "infer_convention",
    "rule_named",
    "to_boundaries",
    "to_states",
]
