"""Region features and locations to vectors: the image half of every encoder's input, one class per family.

Each class names its tensors in Volta's checkpoints (`VOLTA`), so a family is one class here. VL-BERT and M3P, whose
words and regions depend on each other, have modules of their own.
"""

from __future__ import annotations

from torch import Tensor, nn

from .config import EncoderConfig
from .text_embedding import TextEmbedding


class UniterImage(nn.Module):
    """UNITER, mUNITER, xUNITER and UC2: normalised feature + normalised location + segment, normalised again.

    The segment is row 1 of the text's table, or row 0 of a table of its own (xUNITER).
    """

    VOLTA = {
        "feature": "bert.embeddings.image_embeddings",
        "location": "bert.embeddings.image_location_embeddings",
        "feature_norm": "bert.embeddings.image_layer_norm",
        "location_norm": "bert.embeddings.image_location_layer_norm",
        "norm": "bert.embeddings.v_LayerNorm",
        "segment": "bert.embeddings.image_token_type_embeddings",
    }

    def __init__(self, config: EncoderConfig):
        super().__init__()
        hidden = config.image.hidden
        self.feature = nn.Linear(config.feature_dim, hidden)
        self.location = nn.Linear(config.location_dim, hidden)
        self.feature_norm = nn.LayerNorm(hidden, config.norm_eps)
        self.location_norm = nn.LayerNorm(hidden, config.norm_eps)
        if config.image_types:
            self.segment = nn.Embedding(config.image_types, hidden)
        self.norm = nn.LayerNorm(hidden, config.norm_eps)
        self.drop = nn.Dropout(config.image.dropout)

    def forward(self, features: Tensor, locations: Tensor, text_embed: TextEmbedding) -> Tensor:
        """[B, R, feature_dim], [B, R, location_dim] -> [B, R, hidden]"""
        segment = self.segment.weight[0] if hasattr(self, "segment") else text_embed.segment.weight[1]
        summed = self.feature_norm(self.feature(features)) + self.location_norm(self.location(locations)) + segment
        return self.drop(self.norm(summed))


class SummedImage(nn.Module):
    """ViLBERT, and M3P in other names: the layer norm of feature + location."""

    VOLTA = {
        "feature": "bert.v_embeddings.image_embeddings",
        "location": "bert.v_embeddings.image_location_embeddings",
        "norm": "bert.v_embeddings.LayerNorm",
    }

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.feature = nn.Linear(config.feature_dim, config.image.hidden)
        self.location = nn.Linear(config.location_dim, config.image.hidden)
        self.norm = nn.LayerNorm(config.image.hidden, config.norm_eps)
        self.drop = nn.Dropout(config.image.dropout)

    def forward(self, features: Tensor, locations: Tensor, text_embed: TextEmbedding) -> Tensor:
        return self.drop(self.norm(self.feature(features) + self.location(locations)))


class LxmertImage(nn.Module):
    """LXMERT: the mean of the normalised feature and the normalised location."""

    VOLTA = {
        "feature": "bert.v_embeddings.image_embeddings",
        "location": "bert.v_embeddings.image_location_embeddings",
        "feature_norm": "bert.v_embeddings.ImgLayerNorm",
        "location_norm": "bert.v_embeddings.LocLayerNorm",
    }

    def __init__(self, config: EncoderConfig):
        super().__init__()
        hidden = config.image.hidden
        self.feature = nn.Linear(config.feature_dim, hidden)
        self.location = nn.Linear(config.location_dim, hidden)
        self.feature_norm = nn.LayerNorm(hidden, config.norm_eps)
        self.location_norm = nn.LayerNorm(hidden, config.norm_eps)
        self.drop = nn.Dropout(config.image.dropout)

    def forward(self, features: Tensor, locations: Tensor, text_embed: TextEmbedding) -> Tensor:
        return self.drop((self.feature_norm(self.feature(features)) + self.location_norm(self.location(locations))) / 2)


class VisualBertImage(nn.Module):
    """VisualBERT: feature + the first visual position + segment 1, through the text's layer norm. Ignores locations."""

    VOLTA = {
        "feature": "bert.embeddings.projection",
        "position": "bert.embeddings.position_embeddings_visual",
        "segment": "bert.embeddings.token_type_embeddings_visual",
    }

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.feature = nn.Linear(config.feature_dim, config.image.hidden)
        self.position = nn.Embedding(config.max_positions, config.image.hidden)
        self.segment = nn.Embedding(config.text_types, config.image.hidden)

    def forward(self, features: Tensor, locations: Tensor, text_embed: TextEmbedding) -> Tensor:
        return text_embed.finish(self.feature(features) + self.position.weight[0] + self.segment.weight[1])


IMAGE_EMBEDDINGS = {
    "uniter": UniterImage,
    "uc2": UniterImage,
    "vilbert": SummedImage,
    "lxmert": LxmertImage,
    "visualbert": VisualBertImage,
}
