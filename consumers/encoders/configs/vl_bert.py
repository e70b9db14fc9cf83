"""VL-BERT (Su et al., ICLR 2020) in Volta's controlled setup: every word carries a visual feature."""

from ..config import EncoderConfig

CONFIG = EncoderConfig(
    name="vl-bert",
    image_embedding="vl-bert",
    tokenizer="bert-base-uncased",
    vocab_size=30522,
    text_types=3,
)
