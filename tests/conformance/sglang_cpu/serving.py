"""SGLang's models as its scheduler runs them, over a cache, and recorded as a server records them: by `--forward-hooks`.

Prompts, chunks of prompts, decode steps and verify passes of several requests. The parser of the flags, the settings and the code
that hangs hooks on are the engine's own.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from sglang.srt import runtime_context
from sglang.srt.model_executor.cuda_graph_config import cuda_graph_fully_disabled
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.model_executor.hook_manager import register_forward_hooks
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput, EagleDraftInput, EagleVerifyInput

from specalign.integrations.sglang import close_all, forward_hooks_json
from tests.conformance.sglang_cpu.attention import DenseAttention
from tests.conformance.sglang_cpu.boot import LLAMA
from tests.conformance.sglang_cpu.targets import LAYERS, TOKENS

Specs = list[dict[str, Any]]
"""What `--forward-hooks` is given: one entry for each module."""

Edit = Callable[[Specs], Specs]

Row = tuple[str, int, int, int]
"""Request, position, token, kind: 0 of a prefill, 1 of a decode step."""

PROMPTS: Final = {"a": TOKENS.tolist(), "b": [*TOKENS[:5].flip(0).tolist(), 7, 200]}
STEPS: Final = 4
GRAPHS_OFF: Final = ("--disable-cuda-graph",)


class CachedAttention(DenseAttention):
    """`DenseAttention` over all that a request has run so far, which is kept whole, queries included. One for each model."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str], list[torch.Tensor]] = {}

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The rows of this forward; as in `DenseAttention`, for several requests."""
        each = q.shape[0] // forward_batch.batch_size
        lengths = forward_batch.extend_seq_lens_cpu or [each] * forward_batch.batch_size
        outputs = []
        for rid, *parts in zip(forward_batch.rids, *(torch.split(tensor, lengths) for tensor in (q, k, v)), strict=True):
            before = self._kept.get((layer.layer_id, rid), [part[:0] for part in parts])
            whole = [torch.cat(pair) for pair in zip(before, parts, strict=True)]
            self._kept[layer.layer_id, rid] = whole
            attended = super().forward(whole[0], whole[1], whole[2], layer, forward_batch, save_kv_cache, sinks)
            outputs.append(attended[-parts[0].shape[0] :])
        return torch.cat(outputs)


class Scheduler:
    """Runs a target greedily. A request is a list of tokens, of which the first few have been run.

    Attributes:
        tokens: all tokens of each request, the newest of which may not have been run.
        ran: how many of them have been.
    """

    def __init__(self, model: Any, prompts: Mapping[str, Sequence[int]]) -> None:
        self._model, self._attention = model, CachedAttention()
        self.tokens = {rid: list(prompt) for rid, prompt in prompts.items()}
        self.ran = dict.fromkeys(prompts, 0)

    def extend(self, **lengths: int) -> Any:
        """A prefill of the next so many tokens of these requests."""
        return self._run(ForwardMode.EXTEND, lengths)

    def decode(self, *rids: str, called: Sequence[str] = ()) -> Any:
        """One token of each of these requests; `called` are the names that the batch gives them, if they are wrong."""
        return self._run(ForwardMode.DECODE, dict.fromkeys(rids, 1), called)

    def verify(self, *rids: str, count: int) -> Any:
        """The next `count` tokens of each of these requests in one forward, as a chain of drafts that are all right."""
        given = {"spec_steps": count - 1, "topk": 1, "draft_token_num": count}
        unused = [field.name for field in dataclasses.fields(EagleVerifyInput) if field.default is dataclasses.MISSING]
        info = EagleVerifyInput(**dict.fromkeys(unused) | given)
        return self._run(ForwardMode.TARGET_VERIFY, dict.fromkeys(rids, count), spec_info=info)

    def _run(self, mode: ForwardMode, lengths: Mapping[str, int], called: Sequence[str] = (), spec_info: Any = None) -> Any:
        spans = {rid: range(self.ran[rid], self.ran[rid] + length) for rid, length in lengths.items()}
        chosen = [self.tokens[rid][at] for rid, span in spans.items() for at in span]
        output = run(
            self._model, make_batch(mode, called or list(spans), chosen, list(spans.values()), spec_info), self._attention
        )
        newest = output.next_token_logits.argmax(-1).reshape(len(spans), -1)[:, -1]
        for (rid, span), token in zip(spans.items(), newest.tolist(), strict=True):
            self.ran[rid] = span.stop
            if span.stop == len(self.tokens[rid]):
                self.tokens[rid].append(token)
        return output


def serve(engine: Any) -> tuple[Scheduler, list[Any]]:
    """One prompt whole, the other in two chunks, and decode steps of both: the scheduler, and what each forward returned."""
    scheduler = Scheduler(engine, PROMPTS)
    outputs = [scheduler.extend(a=12, b=3), scheduler.extend(b=4)]
    return scheduler, outputs + [scheduler.decode("a", "b") for _ in range(STEPS)]


def rows_of_serve(tokens: Mapping[str, Sequence[int]]) -> list[list[Row]]:
    """What stands in the forwards of `serve`."""
    prefills = [[*(("a", p) for p in range(12)), *(("b", p) for p in range(3))], [("b", p) for p in range(3, 7)]]
    decodes = [[("a", 12 + step), ("b", 7 + step)] for step in range(STEPS)]
    return [[(rid, p, tokens[rid][p], kind) for rid, p in rows] for kind, part in enumerate((prefills, decodes)) for rows in part]


def make_batch(
    mode: ForwardMode, rids: Sequence[str], tokens: Sequence[int], spans: Sequence[range], spec_info: Any = None
) -> ForwardBatch:
    """The ForwardBatch of these tokens, which stand at the positions `spans` of the requests."""
    lengths, ends = [len(span) for span in spans], [span.stop for span in spans]
    batch = ForwardBatch(
        forward_mode=mode,
        batch_size=len(rids),
        input_ids=torch.tensor(tokens),
        req_pool_indices=torch.arange(len(rids)),
        seq_lens=torch.tensor(ends),
        out_cache_loc=torch.arange(len(tokens)),
        seq_lens_sum=sum(ends),
        rids=list(rids),
        spec_info=spec_info,
    )
    batch.positions = torch.tensor([at for span in spans for at in span])
    batch.capture_hidden_mode = CaptureHiddenMode.FULL
    if mode is ForwardMode.EXTEND:
        batch.extend_num_tokens, batch.extend_seq_lens_cpu = len(tokens), lengths
        batch.extend_seq_lens = torch.tensor(lengths)
        batch.extend_start_loc = torch.tensor([0, *itertools.accumulate(lengths)][:-1])
    return batch


def run(model: Any, batch: ForwardBatch, attention: CachedAttention) -> Any:
    """One forward, called as SGLang's ModelRunner calls it: past the hooks of the outermost module."""
    with torch.no_grad(), forward_context(ForwardContext(attn_backend=attention)):
        return model.forward(batch.input_ids, batch.positions, batch)


def run_head(head: Any, tokens: Sequence[int], states: torch.Tensor, rid: str) -> list[Any]:
    """A draft extend over a prompt and one draft step, as SGLang's EAGLE worker runs them: what the two forwards returned.

    Args:
        tokens: the last one is the input of the draft step.
        states: of the target, `[tokens - 1, width]`.
    """
    attention, count = CachedAttention(), len(tokens) - 1
    prompt = EagleDraftExtendInput(hidden_states=states)
    extended = run(head, make_batch(ForwardMode.EXTEND, [rid], tokens[:-1], [range(count)], prompt), attention)
    newest = EagleDraftInput(hidden_states=extended.hidden_states[-1:], topk_p=torch.ones(1, 1))
    step = make_batch(ForwardMode.DECODE, [rid], tokens[-1:], [range(count, count + 1)], newest)
    return [extended, run(head, step, attention)]


def draft_after(engine: Any, head: Any) -> tuple[list[int], list[Any]]:
    """A prompt and a step of the target, then of the head: the tokens of the request, and what the head returned."""
    engine.set_eagle3_layers_to_capture([1, 3, 4])
    scheduler = Scheduler(engine, PROMPTS)
    states = scheduler.extend(a=12).hidden_states
    scheduler.decode("a")
    return scheduler.tokens["a"], run_head(head, scheduler.tokens["a"][1:], states, "a")


@contextlib.contextmanager
def recorded(*models: Any, into: Path, flags: Sequence[str] = GRAPHS_OFF, edit: Edit = list, **options: Any) -> Iterator[None]:
    """A server that records the forwards of its models into a dump and then ends.

    Args:
        models: of the model runners, in the order in which SGLang makes them: target, then draft.
        flags: of the server, besides `--forward-hooks`.
        edit: changes what `forward_hooks_json` made.
        options: of `forward_hooks_json`.
    """
    specs = edit(json.loads(forward_hooks_json(LAYERS, str(into), **options)))
    try:
        with settings(into.with_name(f"{into.name}-start"), *flags, f"--forward-hooks={json.dumps(specs)}"):
            for model in models:
                register_forward_hooks(model, runtime_context.get_observability().forward_hooks)
        yield
    finally:
        for module in itertools.chain(*(model.modules() for model in models)):
            module._forward_hooks.clear()
        close_all()


def graphs_are_off(folder: Path, *flags: str) -> bool:
    """Whether a server with these flags runs no CUDA graph, by SGLang's own word."""
    with settings(folder, *flags):
        return bool(cuda_graph_fully_disabled())


@contextlib.contextmanager
def settings(folder: Path, *flags: str, rank: int = 0) -> Iterator[None]:
    """What a process of a server with these flags reads its settings from. `folder` gets a config, from which nothing is built."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    here = ("--device=cpu", "--dtype=float32", "--attention-backend=torch_native", "--skip-tokenizer-init")
    given = ServerArgs.from_cli_args(parser.parse_args([f"--model-path={folder}", *here, *flags]))
    ranks = runtime_context.SpawnRanks(world_rank=rank)
    with runtime_context.use_context(runtime_context.create_context(given, role="scheduler", ranks=ranks)):
        yield


def renamed(specs: Specs, names: Mapping[str, str]) -> Specs:
    """The same modules under other keys; those whose key becomes "" are left out."""
    made = [spec | {"config": spec["config"] | {"key": names.get(key := spec["config"].get("key", ""), key)}} for spec in specs]
    return [spec for spec in made if spec["config"]["key"] or spec["config"].get("end")]


def exchanged(specs: Specs) -> Specs:
    """Boundaries 3 and 6 have each other's name."""
    names = {"boundary.3": "boundary.6", "boundary.6": "boundary.3"}
    return renamed(specs, names)


def shifted(specs: Specs) -> Specs:
    """Block i is taken for boundary i."""
    names = {"boundary.0": "", **{f"boundary.{b + 1}": f"boundary.{b}" for b in range(LAYERS)}}
    return renamed(specs, names)


def normed(specs: Specs) -> Specs:
    """The state behind the final norm is taken for boundary n."""
    names = {f"boundary.{LAYERS}": "", "post_norm": f"boundary.{LAYERS}"}
    return renamed(specs, names)
