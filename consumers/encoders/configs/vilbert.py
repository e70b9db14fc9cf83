"""ViLBERT (Lu et al., NeurIPS 2019) in Volta's controlled setup: two streams of equal width with co-attention."""

from ..config import EncoderConfig, vilbert_layout

CONFIG = EncoderConfig(
    name="vilbert",
    image_embedding="vilbert",
    tokenizer="bert-base-uncased",
    vocab_size=30522,
    layout=vilbert_layout(text_layers=6, cross_layers=6),
)
