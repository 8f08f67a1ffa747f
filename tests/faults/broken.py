"""The broken implementations, each checking its input as the right one does, so that only the fault differs."""

from __future__ import annotations

from typing import Any

from specalign.layer_ids import POST_NORM
from tests.faults import right
from tests.faults.right import IDS, checked, default


def plus_one(ids: Any, n: int) -> list[int]:
    return default(n) if ids is None else [k + 1 for k in checked(ids, n)]


def plus_one_and_drop(ids: Any, n: int) -> list[int]:
    return default(n) if ids is None else [k + 1 for k in checked(ids, n) if k + 1 < n]


def flag_every_block(ids: Any, n: int) -> list[int]:
    blocks = range(n)
    return [blocks[boundary] for boundary in right.dflash(ids, n)]


def set_after_graph_capture(ids: Any, n: int) -> list[int]:
    to_capture = default(n)
    graph = list(to_capture)
    to_capture = right.output(ids, n)
    return graph


def as_it_is(ids: Any, n: int) -> list[int]:
    return default(n) if ids is None else checked(ids, n - 1)


def dflash_as_it_is(ids: Any, n: int) -> list[int]:
    right.dflash(ids, n)
    return list(ids)


def dflash_plus_two(ids: Any, n: int) -> list[int]:
    return [k + 1 for k in right.dflash(ids, n)]


def stop_before_n(ids: Any, n: int) -> list[int]:
    return [b for b in right.boundary(ids, n) if b < n]


def output_but_stop_before_n(ids: Any, n: int) -> list[int]:
    return [b for b in right.output(ids, n) if b < n]


def last_is_normed(ids: Any, n: int) -> list[Any]:
    return [POST_NORM if b == n else b for b in right.boundary(ids, n)]


def from_the_end(ids: Any, n: int) -> list[int]:
    if isinstance(ids, list) and all(type(k) is int and k >= -n - 1 for k in ids):
        ids = [k if k >= 0 else n + 1 + k for k in ids]
    return right.boundary(ids, n)


def every_state(ids: Any, n: int) -> list[int]:
    right.boundary(ids, n)
    return list(range(n + 1))


def hard_coded(ids: Any, n: int) -> list[int]:
    right.gpt_oss(ids, n)
    return default(n)


def plus_one_capped(ids: Any, n: int) -> list[int]:
    return default(n) if ids is None else [min(k + 1, n) for k in checked(ids, n)]


def in_layer_order(ids: Any, n: int) -> list[int]:
    return sorted(right.boundary(ids, n))


def flags_have_no_count(ids: Any, n: int) -> list[int]:
    unique = list(dict.fromkeys(ids)) if isinstance(ids, list) and all(type(k) is int for k in ids) else ids
    return right.boundary(unique, n)


def default_plus_one(ids: Any, n: int) -> list[int]:
    return [b + 1 for b in default(n)] if ids is None else right.output(ids, n)


def any_depth(ids: Any, n: int) -> list[int]:
    return [2, n // 2, n - 3] if ids is None else right.boundary(ids, n)


def no_check_at_all(ids: Any, n: int) -> list[int]:
    return default(n) if ids is None else [k + 1 for k in ids]


def nested_indexed(config: dict[str, Any]) -> Any:
    return config["eagle_config"].get(IDS) or config.get(IDS)


def top_level_only(config: dict[str, Any]) -> Any:
    return right.read_ids({IDS: config.get(IDS)})


def nested_only(config: dict[str, Any]) -> Any:
    return right.read_ids({"eagle_config": config.get("eagle_config")})


def top_level_first(config: dict[str, Any]) -> Any:
    found = config.get(IDS)
    return right.read_ids(config) if found is None else list(found)


def or_default(config: dict[str, Any]) -> Any:
    return right.read_ids(config) or [2, 18, 33]


def constant(config: dict[str, Any]) -> Any:
    return [2, 18, 33]


def key_present(config: dict[str, Any]) -> Any:
    home = config.get("eagle_config") or {}
    home = home if IDS in home else config
    return list(home[IDS]) if IDS in home else None


def popped(config: dict[str, Any]) -> Any:
    nested = config.pop("eagle_config", None)
    return right.read_ids({"eagle_config": nested, IDS: config.pop(IDS, None)})


def width_from_nested(config: dict[str, Any], hidden: int) -> int:
    return len((config.get("eagle_config") or {}).get(IDS) or (0, 0, 0)) * hidden


def width_of_three(config: dict[str, Any], hidden: int) -> int:
    return 3 * hidden
