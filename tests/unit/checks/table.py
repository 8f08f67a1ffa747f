"""All scenarios. `docs/check.md` is made from these, so that every example in it has run."""

from __future__ import annotations

from tests.unit.checks.scenarios import Scenario
from tests.unit.checks.scenarios_ids import IDS_SCENARIOS
from tests.unit.checks.scenarios_weights import WEIGHTS_SCENARIOS

SCENARIOS: tuple[Scenario, ...] = (*IDS_SCENARIOS, *WEIGHTS_SCENARIOS)
