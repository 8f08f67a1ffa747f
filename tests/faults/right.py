"""Right implementations, written by hand from the rules' one-line definitions: nothing here calls the library's rules."""

from __future__ import annotations

from typing import Any

IDS = "eagle_aux_hidden_state_layer_ids"


def checked(ids: Any, top: int) -> list[int]:
    """The ids, each an int in 0..top and all different, or ValueError."""
    if not isinstance(ids, list) or not ids:
        raise ValueError(f"{ids!r} is no list of ids")
    for k in ids:
        if type(k) is not int or not 0 <= k <= top:
            raise ValueError(f"id {k!r} is not within 0..{top}")
    if len(set(ids)) != len(ids):
        raise ValueError(f"{ids} names an id twice")
    return list(ids)


def default(n: int) -> list[int]:
    if n < 7:
        raise ValueError(f"{n} layers are too few for the default")
    return [2, n // 2, n - 3]


def boundary(ids: Any, n: int) -> list[int]:
    return default(n) if ids is None else checked(ids, n)


def output(ids: Any, n: int) -> list[int]:
    return default(n) if ids is None else [k + 1 for k in checked(ids, n - 1)]


def output_up_to_n_minus_1(ids: Any, n: int) -> list[int]:
    """For a target that never reaches boundary n and says so."""
    return default(n) if ids is None else [k + 1 for k in checked(ids, n - 2)]


def dflash(ids: Any, n: int) -> list[int]:
    if ids is None:
        raise ValueError("a DFlash head names its ids")
    return output(ids, n)


def gpt_oss(ids: Any, n: int) -> list[int]:
    if ids is None:
        return default(n)
    given = checked(ids, n)
    return given if max(given) == n else [k + 1 for k in given]


def deepseek(ids: Any, n: int) -> list[int]:
    if ids is None:
        return default(n)
    return output(ids, n) if checked(ids, n)[0] == 1 else checked(ids, n)


def read_ids(config: dict[str, Any]) -> list[int] | None:
    """Nested before top level; null and missing are None."""
    nested = (config.get("eagle_config") or {}).get(IDS)
    found = config.get(IDS) if nested is None else nested
    return None if found is None else list(found)


def fc_width(config: dict[str, Any], hidden: int) -> int:
    return len(read_ids(config) or (0, 0, 0)) * hidden
