"""A strategy for the `config.json` of draft heads, valid or broken in one named way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy

from pytest_specalign.strategies.ids import as_rule, check_int, check_ordered, ids_taken, layer_ids
from specalign.layer_ids import Rule

Config: TypeAlias = dict[str, Any]
Ids: TypeAlias = list[Any]
IDS_KEY: Final = "eagle_aux_hidden_state_layer_ids"

PLACES: Final = ("nested", "top", "both", "dflash")
"""Where a config lists its ids: in `eagle_config`, at the top level, in both, or in `dflash_config.target_layer_ids`."""


def draft_configs(
    *,
    num_layers: int = 36,
    rule: Rule | str = "as_is_if_max_is_n",
    place: str | None = None,
    min_ids: int = 3,
    max_ids: int = 6,
    broken: str | None = None,
) -> SearchStrategy[Config]:
    """Draft head configs as in `config.json`: fresh dicts of JSON values.

    Args:
        num_layers: n of the target that the head belongs to.
        rule: what ids are valid; see `layer_ids`. Valid configs list them in ascending order.
        place: one of `PLACES`, or None for any of them ("nested", "top" and "both" where `broken` is a fault of EAGLE3 heads).
        min_ids: fewest ids.
        max_ids: most ids. `num_aux_hidden_states` states the count whenever it is not 3.
        broken: None for valid configs, or one of `CONFIG_FAULTS`.

    Examples shrink towards the ids [0, 1, 2] in `eagle_config`, hidden size 2048, no norm, the full vocabulary and plain rope.

    Raises:
        InvalidArgument: naming the argument.
    """
    check_int("num_layers", num_layers)
    check_ordered("min_ids", check_int("min_ids", min_ids), "max_ids", check_int("max_ids", max_ids))
    if place is not None and place not in PLACES:
        raise InvalidArgument(f"place={place!r} is none of {', '.join(PLACES)}")
    if broken is not None and broken not in _FAULTS:
        raise InvalidArgument(f"broken={broken!r} is none of {', '.join(CONFIG_FAULTS)}")
    if place == "dflash" and broken in _EAGLE3_ONLY:
        raise InvalidArgument(f"broken={broken!r} is a fault of EAGLE3 heads: place={place!r} cannot have it")
    most = min(max_ids, len(ids_taken(as_rule(rule), num_layers)))
    ids = layer_ids(num_layers, rule=rule, min_size=min_ids, max_size=most, sorted=True)
    places = [place] if place else [p for p in PLACES if p != "dflash" or broken not in _EAGLE3_ONLY]
    return _configs(st.sampled_from(places), ids, num_layers, broken)


@st.composite
def _configs(draw: st.DrawFn, places: SearchStrategy[str], lists: SearchStrategy[Ids], n: int, broken: str | None) -> Config:
    place = draw(places)
    ids = draw(lists)
    config = draw(_bodies())
    norms = draw(_norms(nested=place != "top"))  # for every place, so that each takes the same number of draws
    if place == "dflash":
        config |= {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 16, "num_target_layers": n}
    else:
        config |= norms
    _put_ids(config, place, ids)
    if broken is not None:
        _FAULTS[broken](draw, config, n)
    return config


@st.composite
def _bodies(draw: st.DrawFn) -> Config:
    """What every head states: sizes, vocabularies, rope."""
    hidden = draw(st.sampled_from([2048, 2560, 2880, 4096, 5120, 7168]))
    head_dim = 64 if hidden % 128 else 128
    vocab = draw(st.sampled_from([128256, 151936, 163840, 201088]))
    config: Config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": hidden // head_dim,
        "num_key_value_heads": 8,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "vocab_size": vocab,
        "draft_vocab_size": draw(st.sampled_from([vocab, 32000])),
    }
    if draw(st.booleans()):
        config["target_hidden_size"] = hidden
    return config | draw(_ropes())


def _ropes() -> SearchStrategy[Config]:
    """Plain, then with scaling beside it, then all in `rope_parameters` as transformers 5 writes it."""
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
    theta = st.sampled_from([10000.0, 150000.0, 1000000.0])
    plain = theta.map(lambda t: {"rope_theta": t, "rope_scaling": None})
    scaled = st.builds(lambda t, s: {"rope_theta": t, "rope_scaling": dict(s)}, theta, st.sampled_from([yarn, llama3]))
    joined = st.builds(lambda t, s: {"rope_parameters": {**s, "rope_theta": t}}, theta, st.sampled_from([yarn, llama3]))
    return st.one_of(plain, scaled, joined)


def _norms(*, nested: bool) -> SearchStrategy[Config]:
    """No norm, or norm_before_fc (in `eagle_config` or at the top level), or fc_norm: never both."""
    flag: Config = {"eagle_config": {"norm_before_fc": True}} if nested else {"norm_before_fc": True}
    choices: list[Config] = [{}, flag, {"norm_before_fc": True}, {"fc_norm": True, "norm_output": True}]
    return st.sampled_from(choices).map(_deep_copy)


def _deep_copy(config: Config) -> Config:
    return {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}


def _put_ids(config: Config, place: str, ids: Ids) -> None:
    if place in ("nested", "both"):
        config.setdefault("eagle_config", {}).update({IDS_KEY: list(ids), "use_aux_hidden_state": True})
    if place in ("top", "both"):
        config[IDS_KEY] = list(ids)
    if place == "dflash":
        config["dflash_config"] = {"mask_token_id": config["vocab_size"] - 1, "target_layer_ids": list(ids)}
    elif len(ids) != 3:
        config["num_aux_hidden_states"] = len(ids)


def _homes(config: Config) -> list[tuple[Config, str]]:
    """Every dict and key under which the config lists its ids."""
    spots = [
        (config.get("eagle_config", {}), IDS_KEY),
        (config, IDS_KEY),
        (config.get("dflash_config", {}), "target_layer_ids"),
    ]
    return [(home, key) for home, key in spots if key in home]


def _change_ids(change: Callable[[st.DrawFn, Ids, int], Any]) -> Callable[[st.DrawFn, Config, int], None]:
    """A fault that replaces the ids wherever the config lists them."""

    def fault(draw: st.DrawFn, config: Config, n: int) -> None:
        homes = _homes(config)
        changed = change(draw, list(homes[0][0][homes[0][1]]), n)
        for home, key in homes:
            home[key] = list(changed) if isinstance(changed, list) else changed

    return fault


def _replace_one(draw: st.DrawFn, ids: Ids, values: SearchStrategy[Any]) -> Ids:
    place = draw(st.integers(0, len(ids) - 1))
    return [*ids[:place], draw(values), *ids[place + 1 :]]


def _remove_ids(draw: st.DrawFn, config: Config, n: int) -> None:
    for home, key in _homes(config):
        del home[key]
    config.pop("num_aux_hidden_states", None)


def _two_places(draw: st.DrawFn, config: Config, n: int) -> None:
    home, key = _homes(config)[0]
    ids = home[key]
    config.setdefault("eagle_config", {})[IDS_KEY] = list(ids)
    config[IDS_KEY] = [k - 1 for k in ids] if min(ids) > 0 else [k + 1 for k in ids]


def _wide_top_level(draw: st.DrawFn, config: Config, n: int) -> None:
    _remove_ids(draw, config, n)
    config[IDS_KEY] = draw(st.lists(st.integers(0, n - 1), min_size=4, max_size=4, unique=True).map(sorted))


def _wrong_count(draw: st.DrawFn, config: Config, n: int) -> None:
    home, key = _homes(config)[0]
    right = len(home[key])
    config["num_aux_hidden_states"] = draw(st.integers(1, 8).filter(lambda count: count != right))


def _two_norm_flags(draw: st.DrawFn, config: Config, n: int) -> None:
    outer = draw(st.booleans())
    config["norm_before_fc"] = outer
    config.setdefault("eagle_config", {})["norm_before_fc"] = not outer


def _two_ropes(draw: st.DrawFn, config: Config, n: int) -> None:
    config["rope_theta"] = 10000.0
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": draw(st.sampled_from([150000.0, 1000000.0]))}


def _sliding(draw: st.DrawFn, config: Config, n: int) -> None:
    window = draw(st.sampled_from([128, 2048]))
    config |= {"sliding_window": window, "layer_types": ["sliding_attention"] * config["num_hidden_layers"]}


def _state(**values: Any) -> Callable[[st.DrawFn, Config, int], None]:
    """A fault that states fixed values at the top level."""
    return lambda draw, config, n: config.update(values)


def _switch_off(draw: st.DrawFn, config: Config, n: int) -> None:
    config.setdefault("eagle_config", {})["use_aux_hidden_state"] = False


_FAULTS: Final[dict[str, Callable[[st.DrawFn, Config, int], None]]] = {
    "ids-missing": _remove_ids,
    "ids-null": _change_ids(lambda draw, ids, n: None),
    "ids-empty": _change_ids(lambda draw, ids, n: []),
    "ids-negative": _change_ids(lambda draw, ids, n: _replace_one(draw, ids, st.integers(-n, -1))),
    "ids-not-integers": _change_ids(lambda draw, ids, n: _replace_one(draw, ids, st.sampled_from([True, 1.0, 1.5, "1", None]))),
    "ids-out-of-range": _change_ids(lambda draw, ids, n: _replace_one(draw, ids, st.integers(n + 1, 2 * n + 1))),
    "ids-duplicated": _change_ids(lambda draw, ids, n: [*ids, draw(st.sampled_from(ids))]),
    "ids-unsorted": _change_ids(lambda draw, ids, n: ids[::-1]),
    "ids-differ-by-place": _two_places,
    "ids-top-level-only-and-wide": _wide_top_level,
    "count-differs-from-ids": _wrong_count,
    "aux-states-switched-off": _switch_off,
    "both-norms": _state(norm_before_fc=True, fc_norm=True),
    "norm-flag-differs-by-place": _two_norm_flags,
    "target-hidden-size-null": _state(target_hidden_size=None),
    "draft-vocab-too-large": lambda draw, config, n: config.update(draft_vocab_size=2 * config["vocab_size"]),
    "rope-differs-by-place": _two_ropes,
    "head-dim-not-hidden-over-heads": lambda draw, config, n: config.update(head_dim=config["head_dim"] + 64),
    "sliding-window": _sliding,
    "eagle-architecture": _state(architectures=["LlamaForCausalLMEagle"]),
}

CONFIG_FAULTS: Final = tuple(_FAULTS)
"""The values of `broken`: ways in which public heads, or their readers, went wrong."""

_EAGLE3_ONLY: Final = frozenset(
    name
    for name in CONFIG_FAULTS
    if name.startswith(("ids-differ", "ids-top", "count", "aux", "both", "norm", "target", "eagle"))
)
