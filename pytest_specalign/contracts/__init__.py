"""Property-check classes that users subclass. They need hypothesis: `pip install 'pytest-specalign[hypothesis]'`."""

from __future__ import annotations

from pytest_specalign.contracts.base import Contract, ContractResult, run_contract
from pytest_specalign.contracts.config_ids import ConfigIdsContract
from pytest_specalign.contracts.layer_ids import LayerIdContract

__all__ = ["ConfigIdsContract", "Contract", "ContractResult", "LayerIdContract", "run_contract"]
