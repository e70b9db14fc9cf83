"""What an encoder says of the examples of a task: an answer for each, or a score for each caption and picture."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import torch

from cache import DataError

from .data import Inputs, TaskData
from .encoders import Embedded, Encoder, score_pairs
from .models.base import Batch, Model
from .models.comparing import Comparing
from .models.data import ModelData
from .tasks import Task

TEXTS = 16  # captions whose scores are written at a time
IMAGES = 1024  # pictures that are kept embedded at a time
EMBEDDED = 256  # captions that are embedded at a time

Report = Callable[[int, int], None]


def predict_answers(
    encoder: Encoder | Model,
    task: Task,
    data: TaskData | ModelData,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    bfloat16: bool = False,
    progress: Report | None = None,
) -> list[dict[str, str]]:
    """The answer to each example, in the layout of the published predictions: of an encoder its likeliest class.

    Examples are read in their own order, in batches of `batch_size`, which matters to VL-BERT's legacy positions only.
    `progress` is called with how many examples are done, of how many.

    Raises: CorruptRecord, StoreDamaged, DiskError.
    """
    encoder = encoder.to(device).eval()
    found = []
    with torch.inference_mode(), autocast(device, bfloat16):
        for start in range(0, len(data), batch_size):
            rows = range(start, min(start + batch_size, len(data)))
            images = data.images[rows.start : rows.stop]
            texts = np.repeat(np.arange(rows.start, rows.stop), images.shape[1])
            inputs = data.inputs(texts.tolist(), images.ravel().tolist()).to(device)
            for row, answer in zip(rows, _answers(encoder, task, inputs), strict=True):
                found.append({"questionId": data.examples[row].id, "prediction": answer})
            if progress:
                progress(rows.stop, len(data))
    return found


def _answers(encoder: Encoder | Model, task: Task, inputs: Inputs | Batch) -> list[str]:
    if isinstance(encoder, Model):
        return encoder.answers(inputs, task)
    return [task.labels[best] for best in encoder.head(task.head)(encoder(*inputs)).argmax(1).tolist()]


def score_captions(
    encoder: Encoder,
    data: TaskData,
    path: str | Path,
    head: str = "retrieval",
    device: torch.device | str = "cpu",
    bfloat16: bool = False,
    progress: Report | None = None,
) -> np.ndarray:
    """Score every caption with every picture.

    Scores are written to a .npy file as they come, so that a run that was interrupted computes the rest only. The
    caller answers for the file being of this encoder and these examples.

    Args:
        path: of the file; f32 [captions, pictures], NaN where there is no score yet.
        progress: called with how many pairs are done, of how many.

    Returns: the scores, of captions in the order of the examples and pictures in that of `data.keys`.

    Raises:
        DataError: the file at `path` is of another size, or no .npy file.
        CorruptRecord, StoreDamaged, DiskError
    """
    encoder = encoder.to(device).eval()
    shape = len(data), len(data.keys)
    scores = _open_scores(Path(path), shape)
    done = int(np.isfinite(scores).sum())
    with torch.inference_mode(), autocast(device, bfloat16):
        texts: dict[int, Embedded] = {}
        for first in range(0, shape[1], IMAGES):
            images = slice(first, min(first + IMAGES, shape[1]))
            left = [row for row in range(0, shape[0], TEXTS) if np.isnan(scores[row : row + TEXTS, images]).any()]
            regions = _embed_images(encoder, data, images, device) if left else None
            for row in left:
                rows = slice(row, min(row + TEXTS, shape[0]))
                if data.tags:
                    some = range(*rows.indices(shape[0]))
                    embedded = [_with_tags(encoder, data, text, images.start, device) for text in some]
                elif row in texts:
                    embedded = texts[row]
                else:
                    ids, mask = data.text(range(rows.start, rows.stop))
                    embedded = texts[row] = encoder.embed_text(ids.to(device), mask.to(device))
                done -= int(np.isfinite(scores[rows, images]).sum())
                scores[rows, images] = score_pairs(encoder, embedded, regions, head).float().cpu().numpy()
                scores.flush()
                done += (rows.stop - rows.start) * (images.stop - images.start)
                if progress:
                    progress(done, scores.size)
    return scores


def score_embeddings(
    model: Comparing,
    data: ModelData,
    path: str | Path,
    head: str = "retrieval",
    device: torch.device | str = "cpu",
    bfloat16: bool = False,
    progress: Report | None = None,
) -> np.ndarray:
    """`score_captions` for a model that embeds captions and pictures apart: the cosine of each pair."""
    model = model.to(device).eval()
    with torch.inference_mode(), autocast(device, bfloat16):
        pictures = torch.from_numpy(model.pictures(data.records(range(len(data.keys))))).to(device)
        pictures = torch.nn.functional.normalize(pictures, dim=1)
        scores = _open_scores(Path(path), (len(data), len(data.keys)))
        for start in range(0, len(data), EMBEDDED):
            rows = range(start, min(start + EMBEDDED, len(data)))
            texts = model.texts(data.text(rows).to(device)).float()
            scores[rows.start : rows.stop] = (torch.nn.functional.normalize(texts, dim=1) @ pictures.T).cpu().numpy()
            if progress:
                progress(rows.stop * len(data.keys), scores.size)
        scores.flush()
    return scores


def _open_scores(path: Path, shape: tuple[int, int]) -> np.memmap:
    if not path.exists():
        partial = path.with_name(f"{path.name}.partial")
        scores = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
        scores[:] = np.nan
        scores.flush()
        partial.replace(path)
    try:
        scores = np.lib.format.open_memmap(path, mode="r+")
    except ValueError as error:
        raise DataError(f"{path} is not a matrix of scores ({error}); delete it to score anew") from error
    if scores.shape != shape or scores.dtype != np.float32:
        raise DataError(f"{path} holds {scores.dtype} {scores.shape}, not float32 {shape}: it is of other examples")
    return scores


def _with_tags(
    encoder: Encoder, data: TaskData, text: int, first: int, device: torch.device | str
) -> Callable[[range], Embedded]:
    """A caption with the tags of pictures, embedded; places of these count from `first`."""

    def embed(images: range) -> Embedded:
        ids, mask = data.text([text] * len(images), [first + image for image in images])
        return encoder.embed_text(ids.to(device), mask.to(device))

    return embed


def _embed_images(encoder: Encoder, data: TaskData, images: slice, device: torch.device | str) -> Embedded:
    parts = []
    for start in range(images.start, images.stop, 64):
        regions = data.regions(range(start, min(start + 64, images.stop)))
        parts.append(encoder.embed_regions(*(tensor.to(device) for tensor in regions)))
    return Embedded.concatenated(parts)


def autocast(device: torch.device | str, bfloat16: bool) -> AbstractContextManager:
    """bfloat16 products on a device, or nothing."""
    return torch.autocast(torch.device(device).type, torch.bfloat16) if bfloat16 else nullcontext()
