"""What `acceptance` and `probe` share: options that name a target, a head and prompts, and loading them."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.prompts import Prompt, read_prompts
from specalign.layer_ids import Convention
from specalign.layer_ids.files import InputError, shown
from specalign.layer_ids.load import LoadedDraft, load_draft

if TYPE_CHECKING:
    from specalign.draft import Eagle3Head
    from specalign.integrations.transformers_target import TransformersTarget


def add_pair_arguments(parser: argparse.ArgumentParser, *, required: bool, limit: int | None) -> None:
    """Options of a pair and its prompts."""
    parser.add_argument(
        "--target", type=Path, required=required, metavar="PATH", help="a folder of transformers, or a .gguf file"
    )
    parser.add_argument("--draft", required=required, metavar="PATH", help="the folder of an EAGLE3 head")
    parser.add_argument("--prompts", type=Path, required=required, metavar="FILE", help="MT-Bench, HumanEval or plain JSONL")
    parser.add_argument(
        "--limit", type=int, default=limit, metavar="N", help=f"take the first N prompts (default: {limit or 'all'})"
    )
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, …")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16", "float64"))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A target with its head, and prompts as tokens.

    Attributes:
        spec: what the head's files say.
        tokens: prompts by name.
    """

    target: TransformersTarget
    head: Eagle3Head
    spec: LoadedDraft
    tokens: dict[str, list[int]]
    environment: dict[str, str]


def load_pair(args: argparse.Namespace, *, new_tokens: int) -> Pair:
    """Load everything.

    Raises:
        InputError: something is missing, cannot be read or does not fit.
    """
    prompts = _prompts(args)
    for module, extra in (("torch", "torch"), ("transformers", "transformers")):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as missing:
            if missing.name != module:
                raise
            raise InputError(f"this needs {module}: pip install 'pytest-specalign[{extra}]'") from None
    import torch
    import transformers

    from specalign.draft import DraftError, load_eagle3
    from specalign.integrations.transformers_target import load_target
    from specalign.speculate.conversation import prompt_tokens

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    spec = load_draft(args.draft)
    dtype = getattr(torch, args.dtype)
    try:
        target, tokenizer = load_target(args.target, device=args.device, dtype=dtype)
        head = load_eagle3(
            spec.config.parent, borrowed=target.borrowed, dtype=dtype, device=args.device, model_vocab_size=target.vocab_size
        )
        tokens = prompt_tokens(target, tokenizer, prompts, new_tokens=new_tokens)
    except (DraftError, RuntimeError) as error:
        raise InputError(str(error)) from error
    environment = {
        "torch": torch.__version__, "transformers": transformers.__version__, "device": _device(args.device), "dtype": args.dtype,
        "threads": str(torch.get_num_threads()), "python": sys.version.split()[0],
    }  # fmt: skip
    return Pair(target, head, spec, tokens, environment)


def parse_convention(text: str | None) -> Convention | None:
    """boundary, output or hf."""
    return None if text is None else Convention(text)


def _prompts(args: argparse.Namespace) -> tuple[Prompt, ...]:
    if args.limit is not None and args.limit < 1:
        raise InputError(f"--limit {args.limit}: at least one prompt is needed")
    try:
        return read_prompts(args.prompts)[: args.limit]
    except AcceptanceError as error:
        raise InputError(str(error)) from error


def _device(name: str) -> str:
    import torch

    device = torch.device(name)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def described(path: Path | str) -> str:
    """A path as a report names it: its last part."""
    return shown(Path(path).name or str(path))
