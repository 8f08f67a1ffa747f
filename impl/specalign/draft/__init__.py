"""Llama EAGLE3 draft heads: config, the norms before fc, the head itself, its vocabulary, and strict loading. Needs torch."""

from specalign.draft.cache import KVCache, LayerKV
from specalign.draft.config import Eagle3Config, parse_eagle3_config, read_eagle3_config
from specalign.draft.eagle3 import DraftStep, Eagle3Head
from specalign.draft.errors import DraftError
from specalign.draft.norms import FcInput, RMSNorm
from specalign.draft.plan import Borrowed, LoadPlan, plan_loading
from specalign.draft.rope import RopeConfig, inverse_frequencies, parse_rope
from specalign.draft.vocab import DraftVocab, make_vocab
from specalign.draft.weights import build_eagle3, load_eagle3, read_tensors

__all__ = [
    "Borrowed",
    "DraftError",
    "DraftStep",
    "DraftVocab",
    "Eagle3Config",
    "Eagle3Head",
    "FcInput",
    "KVCache",
    "LayerKV",
    "LoadPlan",
    "RMSNorm",
    "RopeConfig",
    "build_eagle3",
    "inverse_frequencies",
    "load_eagle3",
    "make_vocab",
    "parse_eagle3_config",
    "parse_rope",
    "plan_loading",
    "read_eagle3_config",
    "read_tensors",
]
