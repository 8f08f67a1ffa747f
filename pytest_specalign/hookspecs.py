"""Hooks that a conftest or another plugin may implement.

A hook in the root conftest, in an initial conftest or in a plugin is seen. One in a conftest further down is not: pytest reads
such a file during collection, after the header has been printed.
"""

from __future__ import annotations

import pytest


def pytest_specalign_environment(config: pytest.Config, environment: dict[str, str]) -> None:
    """Add name → value lines to the header and to reports.

    Called once, on the controller, the first time a header or a report needs it; never while the plugin is inert. All
    implementations are called with the same dict, in pytest's usual order (last registered first); a later one sees, and may
    replace, what an earlier one wrote.

    Args:
        config: the run's config.
        environment: starts empty. Names and values must be strings; anything else stops the run and is named.

    Example, in the root conftest::

        def pytest_specalign_environment(config, environment):
            environment["cluster"] = os.environ.get("CLUSTER", "none")
    """
