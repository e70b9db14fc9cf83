"""The region-feature encoders of the IGLUE benchmark (Bugliarello et al., ICML 2022), in one module tree."""

from .checkpoint import LoadReport, read_checkpoint, save_encoder
from .config import EncoderConfig
from .encoder import Embedded, Encoder, EncoderOutput
from .inputs import InputError
from .registry import encoder_config, from_volta, list_encoders, load_encoder
from .scoring import score_pairs
from .tokenizer import TextBatch, Tokenizer, load_tokenizer

__all__ = [
    "Embedded",
    "Encoder",
    "EncoderConfig",
    "EncoderOutput",
    "InputError",
    "LoadReport",
    "TextBatch",
    "Tokenizer",
    "encoder_config",
    "from_volta",
    "list_encoders",
    "load_encoder",
    "load_tokenizer",
    "read_checkpoint",
    "save_encoder",
    "score_pairs",
]
