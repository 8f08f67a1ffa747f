"""Trains three EAGLE3 heads for SmolLM2-135M-Instruct on one GPU, in minutes.

    python examples/train_head/main.py --out heads --work build/train_head [--heads A B C] [--seconds 240]

    A  norm_before_fc, the default boundaries [2, n//2, n-3]; the target's embedding and lm_head
    B  boundaries that include n, where POST_NORM is easily taken for it; the target's embedding and lm_head
    C  its own vocabulary of 4096 tokens with d2t and t2d, the default boundaries; the target's embedding

Writes `<out>/<head>/config.json`, `model.safetensors` (bfloat16) and `training.json`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "impl"), str(Path(__file__).parent)]

import torch  # noqa: E402  # after the path is set
from held_out import Replay, measure, replay_texts  # noqa: E402
from pair import load_target, load_tokenizer  # noqa: E402
from prompts import split_prompts  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from texts import Texts, write_texts  # noqa: E402
from training import Recipe, Stored, store_states, train_head  # noqa: E402

from specalign.draft import Eagle3Head, make_vocab, parse_eagle3_config  # noqa: E402

VOCABULARY = 49152
BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 576,
    "target_hidden_size": 576, "num_hidden_layers": 1, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "max_position_embeddings": 8192,
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
HEADS: dict[str, tuple[list[int], dict[str, Any]]] = {
    "A": ([2, 15, 27], {"intermediate_size": 2048, "norm_before_fc": True}),
    "B": ([10, 20, 30], {"intermediate_size": 2048, "eagle_aux_hidden_state_layer_ids": [10, 20, 30]}),
    "C": ([2, 15, 27], {"intermediate_size": 896, "draft_vocab_size": 4096}),
}
"""Boundaries, and what the config says beside `BASE`. The ids of B are those of boundaries; A and C take the default."""


FULL: dict[str, Any] = {"new": 224, "invented": 96, "length": 384, "batch": 1024, "seconds": 150.0}
QUICK: dict[str, Any] = {"new": 4, "invented": 4, "length": 64, "batch": 8, "seconds": 1.0}


def config_of(name: str) -> dict[str, Any]:
    """The config.json of a head. Ids stand under eagle_config, where SGLang and vLLM look for them."""
    said = dict(HEADS[name][1])
    ids = said.pop("eagle_aux_hidden_state_layer_ids", None)
    eagle = {"use_aux_hidden_state": True} | ({} if ids is None else {"eagle_aux_hidden_state_layer_ids": ids})
    return BASE | said | {"eagle_config": eagle}


def make_head(name: str, texts: Texts, embedding: torch.Tensor) -> Eagle3Head:
    """A head with random weights that borrows the target's embedding, and its lm_head unless it has a vocabulary of its own."""
    config = parse_eagle3_config(config_of(name))
    vocab = None
    if config.draft_vocab_size is not None:
        rows = torch.arange(texts.tokens.shape[1])
        answers = (rows >= texts.begins[:, None]) & (rows < texts.ends[:, None])
        counts = torch.bincount(texts.tokens[answers], minlength=VOCABULARY)
        kept = counts.argsort(descending=True, stable=True)[: config.draft_vocab_size].sort().values
        vocab = make_vocab(size=len(kept), target_size=VOCABULARY, d2t=kept - torch.arange(len(kept)))
    torch.manual_seed(0)
    head = Eagle3Head(config, vocab).to(embedding.device)
    for parameter in head.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    head.embed_tokens.weight = torch.nn.Parameter(embedding, requires_grad=False)
    if head.lm_head is not None:
        own = config.draft_vocab_size is not None
        weight = embedding[head.vocab.to_target(torch.arange(head.vocab.size)).to(embedding.device)] if own else embedding
        head.lm_head.weight = torch.nn.Parameter(weight.clone() if own else weight, requires_grad=own)
    return head


def tensors_of(head: Eagle3Head) -> dict[str, torch.Tensor]:
    """What the file of a head holds: what was trained, in bfloat16, under the names of SpecForge; d2t and t2d."""
    named = {name: p.detach().to("cpu", torch.bfloat16).contiguous() for name, p in head.named_parameters() if p.requires_grad}
    kept = {name.removeprefix("fc_input.").replace("layers.0.", "midlayer.", 1): value for name, value in named.items()}
    if head.config.draft_vocab_size is not None:
        target = head.vocab.to_target(torch.arange(head.vocab.size)).cpu()
        kept |= {"d2t": target - torch.arange(len(target)), "t2d": torch.zeros(VOCABULARY, dtype=torch.bool)}
        kept["t2d"][target] = True
    return kept


def prepare(work: Path, device: str, quick: bool) -> tuple[torch.nn.Module, Texts, Replay]:
    """The target, the texts to train on and the held-out runs; texts are kept in `work`."""
    model, file = load_target(device), work / "texts.pt"
    train, held = split_prompts()
    if quick:
        train, held = [text for text in train if len(text) < 40][:8], held[-2:]
    tokenizer = load_tokenizer()
    if file.exists():
        texts = Texts(*torch.load(file, weights_only=True))
    else:
        writer = load_target(device, torch.bfloat16)
        torch.manual_seed(0)
        sizes = QUICK if quick else FULL
        texts = write_texts(writer, tokenizer, train, **sizes)
        work.mkdir(parents=True, exist_ok=True)
        torch.save((texts.tokens.to(torch.int32), texts.begins, texts.ends), file)
    texts = Texts(texts.tokens.long(), texts.begins, texts.ends)
    print(f"{len(texts)} texts written or read", flush=True)
    return model, texts, replay_texts(model, tokenizer, held, new=8 if quick else 64)


def main() -> int:
    """Generate, train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="where the texts are kept between calls")
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=list(HEADS))
    parser.add_argument("--seconds", type=float, default=240.0, help="of training, for each head")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="does it run at all?")
    args = parser.parse_args()
    begin = time.monotonic()
    model, texts, held = prepare(args.work, args.device, args.quick)
    print(
        f"{len(texts)} texts, {int((texts.ends - texts.begins).sum())} answer tokens, {time.monotonic() - begin:.0f} s",
        flush=True,
    )
    wanted = {b for name in args.heads for b in HEADS[name][0]}
    stored = store_states(model, texts, wanted, 16 if args.quick else 256)
    print(f"states stored after {time.monotonic() - begin:.0f} s", flush=True)
    embedding: torch.Tensor = model.get_input_embeddings().weight.detach()  # type: ignore[operator, union-attr]
    for name in args.heads:
        one(name, args, texts, stored, held, embedding)
    return 0


def one(name: str, args: argparse.Namespace, texts: Texts, stored: Stored, held: Replay, embedding: torch.Tensor) -> None:
    """Train one head, measure it on the held-out runs, write it."""
    recipe = Recipe(seconds=args.seconds, batch=4 if args.quick else 64, report=1 if args.quick else 200)
    head, log = make_head(name, texts, embedding), []
    for line in train_head(head, embedding, texts, stored, HEADS[name][0], recipe):
        log.append({key: round(value, 6) for key, value in line.items()})
        if len(log) % 5 == 1:
            print(name, log[-1], flush=True)
    tensors = tensors_of(head)  # of what was trained: before nothing is
    length = measure(head.requires_grad_(False).eval(), held, HEADS[name][0])
    folder = args.out / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of(name), indent=2) + "\n", "utf-8")
    facts = {"recipe": dataclasses.asdict(recipe), "texts": len(texts), "acceptance_length": length, "torch": torch.__version__,
             "boundaries": HEADS[name][0], "log": log}  # fmt: skip
    (folder / "training.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    size = (folder / "model.safetensors").stat().st_size
    print(f"head {name}: acceptance length {length:.3f} on {len(held.runs)} held-out prompts, {size / 1e6:.2f} MB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
