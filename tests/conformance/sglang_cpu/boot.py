"""What stands between SGLang's model files and a CPU without its kernels, moved out of the way in the order needed."""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.metadata
import json
import os
import re
import sys
import tempfile
import types
import warnings
from pathlib import Path
from typing import Final

MODELS: Final = ("llama", "gpt_oss", "llama_eagle3")

LLAMA: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "vocab_size": 64,
}
"""A config that `ServerArgs` can read. No model is ever built from it."""

_MISSING_OPERATOR: Final = re.compile(r"operator torchvision::(\w+) does not exist")


@functools.cache
def boot() -> str:
    """Makes SGLang's model classes importable and buildable in this process, once; returns the version of SGLang.

    Raises:
        PackageNotFoundError: SGLang is not installed here.
    """
    version = importlib.metadata.version("sglang")
    os.environ["HF_HUB_OFFLINE"] = "1"  # ServerArgs asks the hub about model paths; the answers are in the local folder
    with warnings.catch_warnings():
        # Deprecated torch calls, and one warning for each quantization that lacks its kernels. They are the engine's affair,
        # and pytest would make errors of them while the modules load.
        warnings.simplefilter("ignore")
        _declare_torchvision_operators()
        _stand_in_for_vllm()
        _stand_in_for_sentencepiece()
        with tempfile.TemporaryDirectory(prefix="specalign-sglang-") as folder:
            _publish_settings(Path(folder))
            _make_groups_of_one(Path(folder))
        _use_one_thread()
        for name in MODELS:
            importlib.import_module(f"sglang.srt.models.{name}")
    return version


def _declare_torchvision_operators() -> None:
    """Lets torchvision be imported, which SGLang and transformers do as soon as it is installed.

    The wheel's compiled half is linked against a CUDA build of torch and does not load beside the CPU build; its Python half
    then registers shapes for operators that nobody declared. The declarations suffice, as nothing here calls an operator.
    """
    import torch

    global _operators  # the declarations live as long as the library object
    _operators = torch.library.Library("torchvision", "FRAGMENT")
    for _ in range(40):
        try:
            importlib.import_module("torchvision")
        except RuntimeError as error:
            missing = _MISSING_OPERATOR.search(str(error))
            if missing is None:
                raise
            _operators.define(f"{missing.group(1)}(Tensor x) -> Tensor")
            _forget("torchvision")
        else:
            return
    raise RuntimeError("torchvision asks for more than 40 operators: is it another version than requirements-nodeps.txt says?")


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]


def _use_one_thread() -> None:
    """The models are tiny: more threads only wait for each other, above all where test processes share the cores."""
    import torch

    torch.set_num_threads(1)


def _stand_in_for_vllm() -> None:
    """SGLang's rotary embedding imports a vLLM kernel where it finds no platform that it knows; `forward_native` never calls it.

    The other way, its CPU platform, needs the compiled half of SGLang, which exists for few CPUs and rounds differently.
    """
    vllm, operators = types.ModuleType("vllm"), types.ModuleType("vllm._custom_ops")
    operators.rotary_embedding = _no_kernel  # type: ignore[attr-defined]
    vllm._custom_ops = operators  # type: ignore[attr-defined]
    sys.modules.update({"vllm": vllm, "vllm._custom_ops": operators})


def _no_kernel(*_: object, **__: object) -> None:
    raise RuntimeError("a kernel of vLLM was called: SGLang left its native path, so this run proves nothing")


def _stand_in_for_sentencepiece() -> None:
    """SGLang's config of InternVL imports it for a tokenizer that no test makes.

    Not installed, because the compiled module of 0.2.1 (SWIG) crashes the interpreter while it shuts down, after the tests.
    """
    module = types.ModuleType("sentencepiece")
    module.__spec__ = importlib.machinery.ModuleSpec("sentencepiece", None)  # transformers looks whether there is one
    sys.modules["sentencepiece"] = module


def _publish_settings(folder: Path) -> None:
    """Model classes read their parallel and kernel settings from a context that the launcher fills in."""
    from sglang.srt import runtime_context
    from sglang.srt.server_args import ServerArgs

    (folder / "config.json").write_text(json.dumps(LLAMA))
    settings = ServerArgs(
        model_path=str(folder),
        device="cpu",
        dtype="float32",
        skip_tokenizer_init=True,
        load_format="dummy",
        attention_backend="torch_native",  # the one name that is accepted without a GPU; every forward brings its own backend
    )
    runtime_context.publish(settings, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0))


def _make_groups_of_one(folder: Path) -> None:
    """Parallel layers ask process groups for their rank. A file, not a port: several test processes may run at once."""
    from sglang.srt.distributed import parallel_state

    parallel_state.init_distributed_environment(
        world_size=1, rank=0, local_rank=0, backend="gloo", distributed_init_method=f"file://{folder}/rendezvous"
    )
    parallel_state.initialize_model_parallel(backend="gloo")
