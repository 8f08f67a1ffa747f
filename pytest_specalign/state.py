"""What the plugin keeps in `config.stash`. There are no module globals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_specalign.options import Setting

SETTINGS: pytest.StashKey[Mapping[str, Setting]] = pytest.StashKey()
"""The options that somebody set, by name: written once, by `options.settings`."""

ENVIRONMENT: pytest.StashKey[Mapping[str, str]] = pytest.StashKey()
"""What the hook `pytest_specalign_environment` gathered: written once, by `report.environment`."""
