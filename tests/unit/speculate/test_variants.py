"""Each row of the table feeds and reads a head as its name says: by hand, on tensors whose norms are known."""

from __future__ import annotations

import torch

from specalign.layer_ids import POST_NORM
from specalign.speculate.variants import DEAD, NONE, RIGHT, Variant, variants_of

from .pairs import HIDDEN, make_head

N = 30


def rows(head: object, states: list[object]) -> dict[str, Variant]:
    return {variant.name: variant for variant in variants_of(head, states, N)}  # type: ignore[arg-type]


def test_what_a_head_with_default_ids_is_fed() -> None:
    found = rows(make_head(), [2, 15, 27])
    assert {name: variant.states for name, variant in found.items()} == {
        RIGHT: (2, 15, 27), "ids +1": (3, 16, 28), "ids -1": (1, 14, 26), "order reversed": (27, 15, 2),
        DEAD: (2, 15, 27), NONE: (2, 15, 27),
    }  # fmt: skip
    assert [name for name, variant in found.items() if not variant.fault] == [RIGHT, DEAD, NONE]
    assert found[NONE].head is None


def test_boundary_n_has_faults_of_its_own_and_stays_where_a_shift_would_leave() -> None:
    found = rows(make_head(), [10, 20, 30])
    assert found["ids +1"].states == (11, 21, 30)
    assert found["ids -1"].states == (9, 19, 29)
    assert found["boundary n replaced by n-1"].states == (10, 20, 29)
    assert found["POST_NORM in place of boundary n"].states == (10, 20, POST_NORM)
    assert "boundary n in place of POST_NORM" not in found
    assert rows(make_head(), [0, 20, POST_NORM])["ids -1"].states == (0, 19, POST_NORM)
    assert rows(make_head(), [0, 20, POST_NORM])["boundary n in place of POST_NORM"].states == (0, 20, 30)


def states() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, HIDDEN, generator=generator, dtype=torch.float64) * scale for scale in (0.1, 1.0, 10.0)]


def test_norms_by_hand() -> None:
    head = make_head(norm_before_fc=True)
    found = rows(head, [2, 15, 27])
    joined = torch.cat(states(), dim=-1)
    weight = head.fc_input.input_norm.weight  # type: ignore[union-attr]

    def rms(x: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()

    def fc(x: torch.Tensor) -> torch.Tensor:
        return x @ head.fc_input.fc.weight.T  # type: ignore[union-attr]

    eps = head.fc_input.input_norm.eps  # type: ignore[union-attr]
    assert eps in (1e-5, 1e-6)
    made = {name: variant.head.combine_states(states()) for name, variant in found.items() if variant.head is not None}
    torch.testing.assert_close(made["norm before fc ignored"], fc(joined))
    torch.testing.assert_close(made[RIGHT], fc(rms(joined) * weight), rtol=1e-3, atol=1e-3)
    chunks = torch.cat([rms(part) for part in states()], dim=-1) * weight
    torch.testing.assert_close(made["norm by chunk, not over the whole"], fc(chunks), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(made[RIGHT], made["norm by chunk, not over the whole"], rtol=1e-1)
    torch.testing.assert_close(head.combine_states(states()), made[RIGHT], rtol=0, atol=0)  # the head itself is as it was


def test_a_head_with_norms_by_chunk_has_the_opposite_fault() -> None:
    found = rows(make_head(fc_norm=True), [2, 15, 27])
    assert {"norm before fc ignored", "norm over the whole, not by chunk"} <= set(found)
    assert "norm by chunk, not over the whole" not in found
    assert "norm before fc ignored" not in rows(make_head(), [2, 15, 27])


def test_without_d2t_draft_tokens_are_taken_for_target_tokens() -> None:
    head = make_head(small=True)
    found = rows(head, [2, 15, 27])["d2t ignored"].head
    assert found is not None
    assert found.vocab.to_target(torch.arange(7)).tolist() == list(range(7))
    assert head.vocab.to_target(torch.arange(7)).tolist() == [0, 2, 3, 6, 7, 11, 12]
    assert "d2t ignored" not in rows(make_head(), [2, 15, 27])


def test_the_dead_control_shares_embedding_and_lm_head_and_nothing_that_was_trained() -> None:
    head = make_head(norm_before_fc=True)
    dead = rows(head, [2, 15, 27])[DEAD].head
    assert dead is not None
    for name, parameter in dead.named_parameters():
        same = torch.equal(parameter, dict(head.named_parameters())[name])
        assert same == (name in ("embed_tokens.weight", "lm_head.weight") or parameter.dim() == 1), name
