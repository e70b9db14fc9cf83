"""xUNITER (Liu et al., EMNLP 2021): a single stream over XLM-R."""

from ..config import EncoderConfig

CONFIG = EncoderConfig(
    name="xuniter",
    image_embedding="uniter",
    tokenizer="xlm-roberta-base",
    vocab_size=250002,
    text_model="xlm-roberta",
    max_positions=514,
    text_types=1,
    image_types=1,
    pad_id=1,
)
