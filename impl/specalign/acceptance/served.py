"""Acceptance figures that a serving engine reports, read from a file or its address, in the definitions of this room.

What is read, and where the rules come from, is in the module of each format: `served_counters` (Prometheus), `served_responses`
and `served_json` (JSON), `served_log` (lines of a log). docs/served.md has the conversions in one table.
"""

from __future__ import annotations

import re
from typing import Final

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.served_counters import Scrape, scrape_of, served_of
from specalign.acceptance.served_json import served_of_json
from specalign.acceptance.served_log import looks_like_log, served_of_log
from specalign.acceptance.served_prometheus import looks_like_prometheus
from specalign.acceptance.served_result import Served
from specalign.acceptance.served_source import read_source
from specalign.layer_ids.files import quoted, shown

TIMEOUT: Final = 10.0
"""Seconds a server has for its whole answer."""

_JSON: Final = re.compile(r"\s*(?:\{|\[\s*[\]\[{\"])")
"""An object, or a list of objects or texts; SGLang's log lines begin with a date in brackets."""


def read_served(source: str, *, timeout: float = TIMEOUT) -> Served:
    """The figures in a file, or that a server gives at a URL; which format it is is told from the content.

    Args:
        source: a path, or a URL of http or https.
        timeout: seconds for the whole answer of a server.

    Raises:
        AcceptanceError: the source cannot be read; holds no figures of acceptance, or of two engines; or they contradict each
            other.
    """
    where, text = shown(source), read_source(source, timeout)
    if looks_like_prometheus(text):
        return served_of(scrape_of(text, where))
    if _JSON.match(text):
        return served_of_json(text, where)
    if looks_like_log(text):
        return served_of_log(text, where)
    raise AcceptanceError(
        f"{where}: no figures of acceptance in it: it begins {quoted(text.strip()[:60])}; accepted are a scrape of Prometheus"
        " metrics (vLLM, SGLang, TensorRT-LLM), JSON of responses or statistics, and logs with vLLM's SpecDecoding metrics or"
        " SGLang's accept len"
    )


def read_scrape(source: str, *, timeout: float = TIMEOUT) -> Scrape:
    """One look at a server's Prometheus metrics, for `served_between`; nothing need have been verified yet.

    Args:
        source, timeout: as `read_served`.

    Raises:
        AcceptanceError: the source cannot be read, or is no scrape of an engine that speculates.
    """
    where, text = shown(source), read_source(source, timeout)
    if not looks_like_prometheus(text):
        raise AcceptanceError(
            f"{where}: no scrape of Prometheus metrics, and only counters can be taken from each other; responses, statistics of"
            " iterations and lines of a log are figures of their own time already: give them alone"
        )
    return scrape_of(text, where)
