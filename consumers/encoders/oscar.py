"""OSCAR (Li et al., ECCV 2020) and OSCAR+ (VinVL, Zhang et al., CVPR 2021): BERT over words, object tags and regions.

The tags are the names of the objects that were found in the picture, as the second segment of the text (`tags` packs
them). Regions have neither position nor segment; where they are is told by six numbers behind their features.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cache import UsageError, WeightsError
from cache.files import replace_file

from .adapters import LANGUAGE, LayerAdapters
from .config import EncoderConfig, single_stream
from .encoder import Embedded, Encoder, EncoderOutput
from .heads import HEADS, Head
from .inputs import InputError
from .names import TEXT_MODULES, Modules, image_and_heads, single_stream_blocks
from .text_embedding import TextEmbedding
from .volta import Shapes, stream_config

LAYER = "bert.encoder.layer.{}"
ATTENTION = {part: f"{LAYER}.attention.self.{name}" for part, name in (("q", "query"), ("k", "key"), ("v", "value"))}
ATTENTION |= {"out": f"{LAYER}.attention.output.dense", "norm": f"{LAYER}.attention.output.LayerNorm"}
FEED_FORWARD = {"fc1": "intermediate.dense", "fc2": "output.dense", "norm": "output.LayerNorm"}
FEED_FORWARD = {part: f"{LAYER}.{name}" for part, name in FEED_FORWARD.items()}
WORDS = "bert.embeddings.word_embeddings.weight"
HIDDEN = re.compile(r"(classifier|clfs_dict\.TASK\d+)\.0\.weight$")  # of a classifier with a hidden layer


class OscarImage(nn.Module):
    """A linear layer over features and locations together, and in OSCAR+ its layer norm."""

    VOLTA = {"linear": "bert.img_embedding", "norm": "bert.LayerNorm"}

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.linear = nn.Linear(config.feature_dim + config.location_dim, config.image.hidden)
        self.norm = nn.LayerNorm(config.image.hidden, config.norm_eps) if config.image_norm else nn.Identity()
        self.drop = nn.Dropout(config.image.dropout)

    def forward(self, features: Tensor, locations: Tensor, text_embed: TextEmbedding) -> Tensor:
        """[B, R, feature_dim], [B, R, location_dim] -> [B, R, hidden]"""
        return self.drop(self.norm(self.linear(torch.cat((features, locations), -1))))


class OscarHead(Head):
    """One linear layer, or two with a ReLU between them and, of two images in OSCAR+, a layer norm behind it.

    Of retrieval a checkpoint has the logits of "no match" and "match". Their difference is given as the one logit: its
    sigmoid is the softmax's probability of a match, and its binary cross-entropy the softmax's.
    """

    def __init__(self, config: EncoderConfig, name: str, labels: int, alone: bool):
        nn.Module.__init__(self)
        spec = HEADS[name]
        self.name, self.images, self.deep = name, spec.images, name in config.deep_heads
        self.roots = tuple(f"clfs_dict.{task}" for task in spec.volta_tasks)
        if alone:
            self.roots = ("classifier", *self.roots)
        self.root = self.roots[0]
        self.matches = name == "retrieval"
        width = config.pool_size * spec.images
        self.drop = nn.Dropout(config.text.dropout)
        if self.deep:
            self.hidden = nn.Linear(width, config.classifier_size)
            if config.image_norm and spec.images > 1:
                self.norm = nn.LayerNorm(config.classifier_size, config.norm_eps)
            width = config.classifier_size
        self.logits = nn.Linear(width, 2 if self.matches else labels)

    def forward(self, output: EncoderOutput) -> Tensor:
        pooled = self.of_all_images(self.drop(output.pooled))
        if self.deep:
            pooled = F.relu(self.hidden(pooled))
            pooled = self.norm(pooled) if hasattr(self, "norm") else pooled
        logits = self.logits(pooled)
        return logits[:, 1:] - logits[:, :1] if self.matches else logits

    def volta_modules(self) -> dict[str, str]:
        if not self.deep:
            return {"logits": self.root}
        parts = ["hidden", *(["norm"] if hasattr(self, "norm") else []), "logits"]
        return {part: f"{self.root}.{n}" for part, n in zip(parts, (0, 2, 3), strict=False)}


class Oscar(Encoder):
    """`encoder(...)` takes one more tensor: `attention`, bool [B, L + R, L + R], tells for each token and region those
    that it looks at, in place of all that are real. A row without any gives numbers without meaning.

    A checkpoint of the published code has one head, under the name `classifier`, and so has an encoder that is built
    with one; more than one have names like Volta's. Whether a head has a hidden layer is told by the checkpoint, or by
    the configuration where the head is new.
    """

    optional = ("adapters.",)

    def __init__(self, config: EncoderConfig, heads: Iterable[str] | Mapping[str, int] = (), legacy: bool = False):
        heads = heads if isinstance(heads, str | Mapping) else tuple(heads)
        self._one_head = len(heads) == 1
        super().__init__(config, heads, legacy)
        if len(heads) < 2:
            self.head_names = re.compile(r"(clfs_dict\.TASK\d+|classifier)\.")
        if config.adapters:
            layers = len(config.layout) // 2
            self.adapters = nn.ModuleList(LayerAdapters(config, n == layers - 1) for n in range(layers))

    def build_head(self, name: str, labels: int) -> Head:
        return OscarHead(self.config, name, labels, self._one_head)

    def image_embedding(self) -> nn.Module:
        return OscarImage(self.config)

    def segments(self, input_ids: Tensor) -> Tensor:
        """0 up to the first separator, 1 behind it, and 0 where there is padding: [B, L]"""
        separators = input_ids == self.config.separator_id
        behind = separators.cumsum(1) - separators.long() > 0
        return (behind & (input_ids != self.config.pad_id)).long()

    def text_vectors(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        table = self.text_embed
        position = table.position(table.positions(input_ids))
        return table.finish(table.word(input_ids) + position + table.segment(self.segments(input_ids)))

    def forward(
        self,
        input_ids: Tensor,
        input_mask: Tensor,
        features: Tensor,
        locations: Tensor,
        region_mask: Tensor,
        attention: Tensor | None = None,
    ) -> EncoderOutput:
        text, regions = self.embed_text(input_ids, input_mask), self.embed_regions(features, locations, region_mask)
        return self.fuse(text, regions, attention=attention)

    def fuse(
        self, text: Embedded, regions: Embedded, pooled_only: bool = False, attention: Tensor | None = None
    ) -> EncoderOutput:
        self.check_pair(text, regions)
        words = text.mask.shape[1]
        joint = torch.cat((text.vectors, regions.vectors), 1)
        mask = torch.cat((text.mask, regions.mask), 1)
        if attention is not None:
            if attention.shape != (wanted := (*mask.shape, mask.shape[1])):
                raise InputError("attention", attention, wanted, "which token or region looks at which")
            mask = attention.bool()
        for n in range(0, len(self.blocks), 2):
            rows = [0, words] if pooled_only and n == self.config.last_attention else None
            joint = self.run_joint(joint, mask, (n,), rows)
            words = 1 if rows else words
            if self.config.adapters:
                joint = self._call(self._adapted, joint, n, words)
            else:
                joint = self.run_joint(joint, mask, (n + 1,))
        pooled = self.pool_text(joint)
        return EncoderOutput(joint[:, :words], joint[:, words:], pooled, None, pooled)

    def _adapted(self, joint: Tensor, n: int, words: int) -> Tensor:
        """The feed-forward sublayer behind attention n, with what adapters add to the input of its norm."""
        side = self.blocks[n + 1].text
        summed = side.summed(joint)
        normed = side.norm(summed)
        return side.norm(summed + (self.adapters[n // 2](normed, words) - normed))

    def volta_modules(self) -> Modules:
        for own, name in TEXT_MODULES.items():
            yield own, ("bert.pooler.dense" if own == "pool_text.dense" else name,)
        yield from image_and_heads(self)
        yield from single_stream_blocks(self, ATTENTION, FEED_FORWARD)
        if self.config.adapters:
            for n, layer in enumerate(self.adapters):
                for part, _ in layer.named_modules():
                    yield f"adapters.{n}.{part}", (f"{LAYER.format(n)}.{part}",)

    @staticmethod
    def suited(config: EncoderConfig, state: Mapping[str, Tensor]) -> EncoderConfig:
        tables = {name: tensor for name, tensor in state.items() if tensor.ndim == 2}
        roots = {match[1]: tensor for name, tensor in tables.items() if (match := HIDDEN.match(name))}
        if "classifier" in roots:  # one head, whichever it is
            config = replace(config, deep_heads=tuple(HEADS), classifier_size=len(roots["classifier"]))
        elif "classifier.weight" in state:
            config = replace(config, deep_heads=())
        if config.any_vocabulary and WORDS in tables:
            config = replace(config, vocab_size=len(tables[WORDS]))
        return config

    @staticmethod
    def read_volta(config: Mapping, family: str, shapes: Shapes) -> dict:
        vocabulary, hidden = shapes(WORDS)
        stream = stream_config(config, "", hidden, config.get("num_attention_heads", 12))
        ffn = shapes(f"{FEED_FORWARD['fc1'].format(0)}.weight")[0]
        deep = [name for name in shapes.state if HIDDEN.match(name)]
        adapters = [f"{LAYER.format(0)}.{part}.down.weight" for part in ("language", "text")]
        return {
            "vocab_size": vocabulary,
            "layout": single_stream(shapes.layers(f"{ATTENTION['q']}.weight")),
            "max_positions": shapes("bert.embeddings.position_embeddings.weight")[0],
            "text_types": shapes("bert.embeddings.token_type_embeddings.weight")[0],
            "separator_id": config.get("sep_token_id", 102),
            "text": replace(stream, ffn=ffn),
            "image": replace(stream, ffn=ffn),
            "feature_dim": shapes("bert.img_embedding.weight")[1] - 6,
            "location_dim": 6,
            "image_norm": "bert.LayerNorm.weight" in shapes,
            "pool_size": hidden,
            "pool_activation": "tanh",
            "fusion": "text",
            "deep_heads": ("nlvr2",),
            "classifier_size": shapes(deep[0])[0] if deep else 3 * hidden,
            "retrieval_loss": "binary",
            "adapters": tuple(shapes(name)[0] for name in adapters) if adapters[0] in shapes else None,
        }


def in_language(checkpoint: str | Path, language: str | Path, output: str | Path) -> None:
    """Write a fine-tuned checkpoint with the words and language adapters of another language in the place of its own.

    `language` has the tensor `bert.embeddings.word_embeddings.weight`, of any number of rows, and for an encoder with
    adapters `bert.encoder.layer.{n}.language.{down,up}.{weight,bias}` of every layer; what else it has is not read.
    Raises: InputNotFound, WeightsError: a tensor is missing or of another width; UsageError: no .safetensors output.
    """
    from safetensors.torch import save

    from .checkpoint import normalised, read_checkpoint

    if Path(output).suffix != ".safetensors":
        raise UsageError(f"{output} is written as .safetensors: give it that ending")
    state, other = (normalised(read_checkpoint(path)) for path in (checkpoint, language))
    if WORDS not in state:
        raise WeightsError(f"{checkpoint} has no {WORDS}: it is no checkpoint of OSCAR")
    for name in (one for one in state if one == WORDS or LANGUAGE.search(one)):
        if name not in other:
            raise WeightsError(f"{language} has no {name}, which {checkpoint} takes from a language")
        mine, its = (tuple(tensors[name].shape) for tensors in (state, other))
        if its[1:] != mine[1:] or (name != WORDS and its != mine):
            raise WeightsError(f"{name} is {its} in {language} and {mine} in {checkpoint}")
        state[name] = other[name]
    replace_file(Path(output), save({name: tensor.contiguous().clone() for name, tensor in state.items()}))
