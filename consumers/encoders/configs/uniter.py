"""UNITER (Chen et al., ECCV 2020) in Volta's controlled setup: a single stream over BERT."""

from ..config import EncoderConfig

CONFIG = EncoderConfig(
    name="uniter",
    image_embedding="uniter",
    tokenizer="bert-base-uncased",
    vocab_size=30522,
)
