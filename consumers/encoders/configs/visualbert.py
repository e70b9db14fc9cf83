"""VisualBERT (Li et al., 2019) in Volta's controlled setup: a single stream over BERT that never sees the boxes."""

from ..config import EncoderConfig

CONFIG = EncoderConfig(
    name="visualbert",
    image_embedding="visualbert",
    tokenizer="bert-base-uncased",
    vocab_size=30522,
)
