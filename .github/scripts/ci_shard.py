"""A pytest plugin that runs one shard of the tests, and leaves an account by which a gate sees that none was lost.

    PYTHONPATH=.github/scripts pytest -p ci_shard --ci-stage=NAME --ci-shard=2/4 --ci-account=account.json --junit-xml=junit.xml

A test belongs to shard 1 + SHA-256(node id) mod N. That follows from its name alone: whatever another shard collects, each test
has exactly one shard. `--ci-shard-by=file` hashes the file instead, so that a module's server starts in one shard only.

The account is JSON: the stage, the shard, all tests that were collected (after pytest's own -k and -m), and those that are this
shard's. In the JUnit file each test has the property `node_id`, and `gpu` where it has that mark. Works under pytest-xdist.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import pytest

SCHEMA = "ci-account/1"


def read_shard(text: str) -> tuple[int, int]:
    """`2/4` → (2, 4)."""
    match = re.fullmatch(r"([1-9][0-9]*)/([1-9][0-9]*)", text)
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError(f"shard {text!r}: write I/N, with I from 1 to N")
    return int(match[1]), int(match[2])


def shard_of(key: str, count: int) -> int:
    """From 1 to `count`; the same in each process and version of Python, as `hash` is not."""
    return 1 + int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest(), "big") % count


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ci-shard")
    group.addoption("--ci-shard", metavar="I/N", default="1/1", help="run shard I of N; default: 1/1")
    group.addoption("--ci-shard-by", choices=["test", "file"], default="test", help="what is kept together; default: test")
    group.addoption("--ci-stage", metavar="NAME", default="gpu", help="name for the account; default: gpu")
    group.addoption("--ci-account", metavar="FILE", help="where the account is written")


def pytest_configure(config: pytest.Config) -> None:
    try:
        _, count = read_shard(config.getoption("--ci-shard"))
    except ValueError as error:
        raise pytest.UsageError(f"--ci-shard: {error}") from error
    if count > 1 and getattr(config.option, "splits", None) is None:
        # As pytest-split calls it: by this name others, like the GPU policy, know that what does not run here runs elsewhere.
        # Without its --group, pytest-split itself stays out.
        config.option.splits = count


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Last, after -k and -m: what others leave out is no shard's."""
    number, count = read_shard(config.getoption("--ci-shard"))
    whole_file = config.getoption("--ci-shard-by") == "file"
    mine, others = [], []
    for item in items:
        key = item.nodeid.partition("::")[0] if whole_file else item.nodeid
        (mine if shard_of(key, count) == number else others).append(item)
        item.user_properties.append(("node_id", item.nodeid))
        if item.get_closest_marker("gpu") is not None:
            item.user_properties.append(("gpu", "yes"))
    _write_account(config, [item.nodeid for item in items], [item.nodeid for item in mine])
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = mine


def _write_account(config: pytest.Config, collected: list[str], selected: list[str]) -> None:
    """Once a run: pytest-xdist itself refuses a run whose workers collect different tests, so the first speaks for all."""
    file = config.getoption("--ci-account")
    if file is None or getattr(config, "workerinput", {"workerid": "gw0"})["workerid"] != "gw0":
        return
    account = {
        "schema": SCHEMA,
        "stage": config.getoption("--ci-stage"),
        "shard": list(read_shard(config.getoption("--ci-shard"))),
        "collected": collected,
        "selected": selected,
    }
    target = Path(config.invocation_params.dir, file)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(account, indent=1), "utf-8")
    unfinished.replace(target)
