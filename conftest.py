"""Set-up of this repository's own tests: pytester, and the hypothesis profiles.

`SPECALIGN_HYPOTHESIS_PROFILE` chooses the profile; without it, `ci` is used where the variable CI is set, otherwise `dev`.

    ci    the same examples each time; a failure prints what reproduces it
    dev   random examples
    fuzz  20,000 random examples for each test; the database stays in .hypothesis, so that the next run begins with old finds
"""

from __future__ import annotations

import os

pytest_plugins = ["pytester"]

try:
    from hypothesis import HealthCheck, settings
    from hypothesis.database import DirectoryBasedExampleDatabase
except ModuleNotFoundError as missing:
    if missing.name != "hypothesis":
        raise
else:
    settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
    settings.register_profile("dev", deadline=None)
    settings.register_profile(
        "fuzz",
        deadline=None,
        max_examples=20_000,
        print_blob=True,
        database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile(os.environ.get("SPECALIGN_HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))
