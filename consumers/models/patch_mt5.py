"""mT5 whose encoder reads the patches of a picture before the words of a text: it writes a text about both.

The patches are those of a store, frozen as an extractor left them, or come out of a ViT that learns with the rest.
A folder of it holds `mt5` and, of the second kind, `vision`, each as `save_pretrained` leaves it, and
`projection.safetensors`; without the last, what leads from patches to words is drawn anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cache import Regions, StoreMismatch, UsageError, WeightsError

from ..encoders.checkpoint import LoadReport
from .base import companion, pretrained, quiet

TEXT, VISION, PROJECTION = "mt5", "vision", "projection.safetensors"


class PatchMt5(nn.Module):
    """The network.

    Args:
        text: `MT5ForConditionalGeneration`.
        vision: `ViTModel`, whose patches are read; None to read patches as they are given.
        patch_dim: of patches that are given; None until `fit` tells.
        report: what was loaded.
    """

    def __init__(self, text: Any, vision: Any | None, patch_dim: int | None, report: LoadReport):
        super().__init__()
        self.text, self.vision, self.report = text, vision, report
        self.projection: nn.Linear | None = None
        if dim := vision.config.hidden_size if vision is not None else patch_dim:
            self.fit(dim)

    def fit(self, patch_dim: int) -> None:
        """Read patches of a dimension from now on, by fresh weights where it had none.

        Raises: StoreMismatch: it reads those of another.
        """
        if self.projection is None:
            self.projection = nn.Linear(patch_dim, self.text.config.d_model)
        if self.projection.in_features != patch_dim:
            raise StoreMismatch(
                f"the patches have {patch_dim} numbers, and these weights read {self.projection.in_features}: extract "
                "with the model that they were trained with"
            )

    def forward(self, pictures: Tensor, present: Tensor, ids: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        """The words that may follow, at each place of the text to write.

        Args:
            pictures: f32 [B, P, d] patches, or pixels [B, 3, H, W] for a ViT.
            present: bool [B, P], which patches there are; of pixels bool [B, 1], and ignored.
            ids, mask: i64 [B, L], the text to read.
            target: i64 [B, T], the text to write, IGNORED behind its end.

        Returns: logits [B, T, words].
        """
        embedded, attended = self._embed(pictures, present, ids, mask)
        before = self.text.prepare_decoder_input_ids_from_labels(labels=target)
        return self.text(inputs_embeds=embedded, attention_mask=attended, decoder_input_ids=before).logits

    @torch.inference_mode()
    def generate(self, pictures: Tensor, present: Tensor, ids: Tensor, mask: Tensor, most: int, **how: Any) -> Tensor:
        """Ids of the likeliest texts, i64 [B, at most `most` + 1], behind the token that begins each.

        Args:
            how: as `transformers.GenerationConfig`, such as num_beams; greedy without.
        """
        embedded, attended = self._embed(pictures, present, ids, mask)
        how = {"do_sample": False, "num_beams": 1, **how}
        return self.text.generate(inputs_embeds=embedded, attention_mask=attended, max_new_tokens=most, **how)

    def _embed(self, pictures: Tensor, present: Tensor, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if self.vision is not None:
            pictures = self.vision(pictures).last_hidden_state[:, 1:]  # the first is no patch
            present = torch.ones(pictures.shape[:2], dtype=torch.bool, device=pictures.device)
        words = self.text.get_input_embeddings()(ids)
        embedded = torch.cat([self.projection(pictures).to(words.dtype), words], 1)
        return embedded, torch.cat([present.to(mask.dtype), mask], 1)

    def save(self, folder: Path, **companions: Any) -> None:
        """Leave in a folder what `load_patch_mt5` reads, and in its subfolders their companions, such as a tokenizer.

        Raises: OSError.
        """
        from safetensors.torch import save_file

        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        with quiet():
            self.text.save_pretrained(partial / TEXT)
            if self.vision is not None:
                self.vision.save_pretrained(partial / VISION)
        for name, one in companions.items():
            one.save_pretrained(partial / name)
        save_file({k: v.contiguous().cpu() for k, v in self.projection.state_dict().items()}, partial / PROJECTION)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)


def load_patch_mt5(source: str, vision: str | None = None) -> PatchMt5:
    """The network from a folder as `PatchMt5.save` leaves it, or from an mT5 and fresh weights for the patches.

    Args:
        source: such a folder, or hub id or folder of an mT5.
        vision: hub id or folder of the ViT, where the network is to read pixels and the folder has none; None reads
            patches.

    Raises: InputNotFound, WeightsError.
    """
    from transformers import MT5ForConditionalGeneration, ViTModel

    folder = Path(source)
    ours = (folder / TEXT).is_dir()
    text, report = pretrained(MT5ForConditionalGeneration, str(folder / TEXT) if ours else source)
    reports, eyes = [report], None
    if vision is not None:
        where = str(folder / VISION) if (folder / VISION).is_dir() else vision
        eyes, seen = pretrained(ViTModel, where, add_pooling_layer=False)
        reports.append(seen)
    elif (folder / VISION).is_dir():
        raise WeightsError(f"{source} reads pixels with a ViT of its own, and not the patches of a store")
    state = _projection(folder / PROJECTION) if (folder / PROJECTION).is_file() else None
    fresh = tuple(name for one in reports for name in one.fresh)
    loaded = tuple(name for one in reports for name in one.loaded)
    fresh += () if state else ("projection.weight", "projection.bias")
    report = LoadReport(source, loaded, (), tuple(name for one in reports for name in one.skipped), fresh)
    model = PatchMt5(text, eyes, state["weight"].shape[1] if state else None, report)
    if state:
        try:
            model.projection.load_state_dict(state)
        except RuntimeError as error:
            raise WeightsError(f"{folder / PROJECTION} does not fit its mT5: {error}") from error
    return model.eval()


def _projection(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        state = load_file(path)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error
    if sorted(state) != ["bias", "weight"] or state["weight"].ndim != 2:
        raise WeightsError(f"{path} holds {', '.join(sorted(state))}, not the weight and bias of a projection")
    return state


def load_mt5_tokenizer(source: str, given: str | None, published: str) -> Any:
    """The tokenizer of an mT5: the one that is given, else that of the source or its folder, else the published one.

    Raises:
        InputNotFound: there is none.
        UsageError: what reads mT5's own, as published, is not installed.
    """
    from transformers import AutoTokenizer

    folder = Path(source)
    places = [folder / TEXT, folder] if folder.is_dir() else []
    beside = next((str(one) for one in places if (one / "tokenizer_config.json").is_file()), None)
    place = given or beside or (published if folder.is_dir() else source)
    try:
        return companion(AutoTokenizer, place)
    except (WeightsError, ImportError) as error:
        if lacking := [name for name in ("sentencepiece", "google.protobuf") if find_spec(name) is None]:
            raise UsageError(
                f"the tokenizer of {place} is read with {lacking[0]}, which is not installed: pip install "
                "sentencepiece protobuf"
            ) from error
        raise


def patches_of(records: Sequence[Regions]) -> tuple[Tensor, Tensor]:
    """The patches of pictures in the order of the store, f32 [B, P, d], and which there are, bool [B, P].

    What pads pictures of fewer patches comes first, so that the last patch is always next to the first word: mT5 knows
    places by their distances.

    Raises: StoreMismatch: a record has none, or of another dimension.
    """
    dims = {one.features.shape[1] for one in records if len(one.features)}
    if empty := [one.key for one in records if not len(one.features)]:
        raise StoreMismatch(f"{empty[0]!r} has no patches: give a store of a grid extractor")
    if len(dims) > 1:
        raise StoreMismatch(f"the patches of {records[0].key!r} and others have different dimensions: {sorted(dims)}")
    most = max(len(one.features) for one in records)
    patches = torch.zeros(len(records), most, dims.pop())
    present = torch.zeros(len(records), most, dtype=torch.bool)
    for row, one in enumerate(records):
        count = len(one.features)
        patches[row, most - count :] = torch.from_numpy(np.asarray(one.features, np.float32))
        present[row, most - count :] = True
    return patches, present
