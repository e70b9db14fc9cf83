"""ViLBERT as first published (Lu et al., NeurIPS 2019): an image stream of its own width."""

from ..config import EncoderConfig, StreamConfig, vilbert_layout

CONFIG = EncoderConfig(
    name="vilbert-original",
    image_embedding="vilbert",
    tokenizer="bert-base-uncased",
    vocab_size=30522,
    layout=vilbert_layout(text_layers=6, cross_layers=6, width=1024, heads=8),
    image=StreamConfig(hidden=1024, heads=8, ffn=1024),
)
