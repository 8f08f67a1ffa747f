"""What `acceptance` and `probe` share: options that name a target, a head and prompts, and loading them."""

from __future__ import annotations

import argparse
from pathlib import Path

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.prompts import Prompt, read_prompts
from specalign.integrations import pair as loading
from specalign.layer_ids import Convention
from specalign.layer_ids.files import InputError


def add_pair_arguments(parser: argparse.ArgumentParser, *, required: bool, limit: int | None) -> None:
    """Options of a pair and its prompts."""
    parser.add_argument(
        "--target", type=Path, required=required, metavar="PATH", help="a folder of transformers, a .gguf file, or a cached id"
    )
    parser.add_argument("--draft", required=required, metavar="PATH", help="the folder of an EAGLE3 head, or a cached id")
    parser.add_argument("--prompts", type=Path, required=required, metavar="FILE", help="MT-Bench, HumanEval or plain JSONL")
    parser.add_argument(
        "--limit", type=int, default=limit, metavar="N", help=f"take the first N prompts (default: {limit or 'all'})"
    )
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, …")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16", "float64"))


def load_pair(args: argparse.Namespace, *, new_tokens: int) -> loading.Pair:
    """Load what the options name.

    Raises:
        InputError: something is missing, cannot be read or does not fit.
    """
    prompts = _prompts(args)
    return loading.load_pair(args.target, args.draft, prompts, new_tokens=new_tokens, device=args.device, dtype=args.dtype)


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
