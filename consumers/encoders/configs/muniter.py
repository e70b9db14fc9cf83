"""mUNITER (Liu et al., EMNLP 2021): a single stream over multilingual BERT."""

from ..config import EncoderConfig

CONFIG = EncoderConfig(
    name="muniter",
    image_embedding="uniter",
    tokenizer="bert-base-multilingual-cased",
    vocab_size=119547,
)
