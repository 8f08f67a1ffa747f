"""Target models, each in plain torch, with their states captured by the same path as everywhere else."""

from specalign.models.errors import CacheError, ModelConfigError, WeightsError
from specalign.models.gpt_oss import Block, GptOss, Output
from specalign.models.gpt_oss_attention import Step
from specalign.models.gpt_oss_config import GptOssConfig
from specalign.models.gpt_oss_weights import load_gpt_oss, random_gpt_oss
from specalign.models.kv_cache import KVCache
from specalign.models.mxfp4 import dequantize_mxfp4
from specalign.models.norms import RMSNorm

__all__ = [
    "Block",
    "CacheError",
    "GptOss",
    "GptOssConfig",
    "KVCache",
    "ModelConfigError",
    "Output",
    "RMSNorm",
    "Step",
    "WeightsError",
    "dequantize_mxfp4",
    "load_gpt_oss",
    "random_gpt_oss",
]
