"""Which states a head takes, where its files prove it; and a refusal where they do not."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids import POST_NORM, Convention
from specalign.layer_ids.draft_config import parse_draft
from specalign.layer_ids.files import InputError
from specalign.speculate.head_states import UndecidedError, head_states, stated_ids


def spec(**config: Any) -> Any:
    return parse_draft({"architectures": ["LlamaForCausalLMEagle3"], **config}, name="a head")


KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("config", "convention", "states"),
    [
        pytest.param({}, None, (2, 15, 27), id="no ids: the default"),
        pytest.param({KEY: [10, 20, 30]}, None, (10, 20, 30), id="n is no block output"),
        pytest.param({"eagle_config": {KEY: [10, 20, 29]}}, Convention.OUTPUT, (11, 21, 30), id="said: block outputs"),
        pytest.param({KEY: [10, 20, 29]}, Convention.BOUNDARY, (10, 20, 29), id="said: boundaries"),
        pytest.param({KEY: [10, 20, 30]}, Convention.HF, (10, 20, POST_NORM), id="said: output_hidden_states"),
        pytest.param({"eagle_config": {"use_aux_hidden_state": False}}, None, (POST_NORM,), id="no aux states"),
        pytest.param({"speculators_model_type": "eagle3", KEY: [3, 16, 28]}, None, (3, 16, 28), id="speculators: boundaries"),
        pytest.param({KEY: [10, 20, 30], "eagle_config": {KEY: [10, 20, 30]}}, None, (10, 20, 30), id="two places agree"),
    ],
)
def test_states(config: dict[str, Any], convention: Convention | None, states: tuple[object, ...]) -> None:
    assert head_states(spec(**config), 30, convention) == states


def test_ids_that_may_mean_two_things_are_undecided() -> None:
    with pytest.raises(UndecidedError, match=r"\[10, 20, 29\] may be boundaries or block outputs.*--convention.*specalign probe"):
        head_states(spec(**{KEY: [10, 20, 29]}), 30)


def test_places_that_disagree_and_what_is_no_list_are_refused() -> None:
    with pytest.raises(InputError, match="states different ids"):
        stated_ids(spec(**{KEY: [1, 2, 3], "eagle_config": {KEY: [2, 3, 4]}}))
    with pytest.raises(InputError, match="is no list of ids"):
        stated_ids(spec(**{KEY: [1, "2", 3]}))
    with pytest.raises(InputError, match="is no list of ids"):
        stated_ids(spec(**{KEY: 7}))
    assert stated_ids(spec()) is None
