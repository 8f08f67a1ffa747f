"""Property-check classes that users subclass. They need hypothesis: `pip install 'pytest-specalign[hypothesis]'`.

`CaptureContract`, `DraftNormContract` and `RoutingContract` need torch as well; it is imported when one of them is first
asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from pytest_specalign.contracts.base import Contract, ContractResult, run_contract
from pytest_specalign.contracts.config_ids import ConfigIdsContract
from pytest_specalign.contracts.layer_ids import LayerIdContract

if TYPE_CHECKING:
    from pytest_specalign.contracts.capture import CaptureContract
    from pytest_specalign.contracts.draft_norm import DraftNormContract
    from pytest_specalign.contracts.routing import RoutingContract

__all__ = [
    "CaptureContract",
    "ConfigIdsContract",
    "Contract",
    "ContractResult",
    "DraftNormContract",
    "LayerIdContract",
    "RoutingContract",
    "run_contract",
]

_ON_DEMAND: Final = {"CaptureContract": "capture", "DraftNormContract": "draft_norm", "RoutingContract": "routing"}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ON_DEMAND[name]}"), name)
