"""A target with its head and prompts, loaded from files: what commands and suites measure, and what a golden is held to be of."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specalign.acceptance.prompts import Prompt
from specalign.acceptance.table import Table
from specalign.layer_ids import Convention
from specalign.layer_ids.files import InputError, is_there, shown
from specalign.layer_ids.load import LoadedDraft, load_draft
from specalign.layer_ids.sources import locate

if TYPE_CHECKING:
    from specalign.draft import Eagle3Head
    from specalign.integrations.transformers_target import TransformersTarget
    from specalign.speculate.table import Settings


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A target with its head, and prompts as tokens.

    Attributes:
        names: of the target and the draft, as a report names them.
        spec: what the head's files say.
        tokens: prompts by name.
        environment: versions, device and dtype: what figures may depend on.
    """

    names: tuple[str, str]
    target: TransformersTarget
    head: Eagle3Head
    spec: LoadedDraft
    tokens: dict[str, list[int]]
    environment: dict[str, str]

    def identity(self) -> dict[str, str]:
        """What a golden is held to be of: names, sizes, and the SHA-256 of the head's weights and of the prompts' tokens.

        What the ids mean is no part of it: read otherwise, the same pair accepts less, and the gate is there to say so.
        """
        weights = hashlib.sha256()
        for file in sorted(self.spec.config.parent.glob("*.safetensors")):
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    weights.update(block)
        tokens = json.dumps(self.tokens, sort_keys=True).encode()
        target, draft = self.names
        return {
            "target": target, "layers": str(self.target.num_layers), "hidden": str(self.target.hidden_size),
            "draft": draft, "weights": weights.hexdigest(), "prompts": hashlib.sha256(tokens).hexdigest(),
            "dtype": self.environment["dtype"],
        }  # fmt: skip


def load_pair(
    target: Path | str,
    draft: Path | str,
    prompts: Sequence[Prompt],
    *,
    new_tokens: int,
    device: str = "cpu",
    dtype: str = "float32",
) -> Pair:
    """Load everything.

    Args:
        target: a folder of transformers, a .gguf file, or a repository id in the Hugging Face cache.
        draft: the folder of an EAGLE3 head, or such an id.
        prompts: as `specalign.acceptance.read_prompts` gives them.
        new_tokens: of an answer between two turns of a prompt.
        device: as torch names it.
        dtype: the same, of both models.

    Raises:
        InputError: something is missing, cannot be read or does not fit.
    """
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
    spec = load_draft(str(draft))
    kind = getattr(torch, dtype)
    try:
        torch.zeros((), device=device).item()
    except (RuntimeError, AssertionError) as error:  # a build without CUDA asserts
        raise InputError(f"device {device!r} cannot be used: {_one_line(error)}; give one that this machine has") from error
    try:
        model, tokenizer = load_target(_place(target), device=device, dtype=kind)
        head = load_eagle3(
            spec.config.parent, borrowed=model.borrowed, dtype=kind, device=device, model_vocab_size=model.vocab_size
        )
        tokens = prompt_tokens(model, tokenizer, prompts, new_tokens=new_tokens)
    except (DraftError, RuntimeError) as error:
        raise InputError(_one_line(error)) from error
    _require_finite(head, described(draft))
    environment = {
        "torch": torch.__version__, "transformers": transformers.__version__, "device": _device(device), "dtype": dtype,
        "threads": str(torch.get_num_threads()), "python": sys.version.split()[0],
    }  # fmt: skip
    return Pair((described(target), described(draft)), model, head, spec, tokens, environment)


def measure_pair(
    pair: Pair,
    settings: Settings,
    *,
    convention: Convention | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Table:
    """The rows of a pair.

    Args:
        pair: what is measured.
        settings: how; `loop_prompts` may be more than there are prompts.
        convention: what the head's ids mean, for whoever knows.
        progress: called with prompts done and to be done.

    Raises:
        InputError: the pair does not fit, or its ids prove nothing and no convention is given.
        AcceptanceError: no answer has a second token.
    """
    from specalign.draft import DraftError
    from specalign.speculate.head_states import head_states
    from specalign.speculate.table import measure_table

    states = head_states(pair.spec.spec, pair.target.num_layers, convention)
    settings = dataclasses.replace(settings, loop_prompts=min(settings.loop_prompts, len(pair.tokens)))
    try:
        return measure_table(pair.target, pair.head, states, pair.tokens, settings, progress=progress)
    except DraftError as error:
        raise InputError(str(error)) from error


def described(path: Path | str) -> str:
    """A path as a report names it: its last part."""
    return shown(Path(path).name or str(path))


def _place(target: Path | str) -> Path:
    """A path that is there as it is; else the folder that a repository id has in the Hugging Face cache."""
    path = Path(target)
    return path if is_there(path) else locate(str(target)).config.parent


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _require_finite(head: Eagle3Head, name: str) -> None:
    """Raises `InputError` for weights that are NaN or infinite: their drafts are all one token, and the run looks dead."""
    for key, value in (*head.named_parameters(), *head.named_buffers()):
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise InputError(f"{name}: the weight {key} holds NaN or infinity; was it trained, or stored, in too small a dtype?")


def _device(name: str) -> str:
    import torch

    device = torch.device(name)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
