"""Reading checkpoints and filling an encoder from them: every tensor is accounted for, or nothing is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from cache import InputNotFound, WeightsError
from cache.files import replace_file
from cache.tensor_files import check_plain, check_unpacked, unreadable

from .encoder import Encoder
from .names import volta_names

FILE_NAMES = ("model.safetensors", "pytorch_model.safetensors", "pytorch_model_best.bin", "pytorch_model.bin")
WRAPPERS = ("model_state_dict", "state_dict", "model")  # keys under which training scripts nest the state dict

# Tensors of a checkpoint that no encoder has: heads of pretraining, and buffers that hold 0, 1, 2, ...
PRETRAINING = re.compile(
    r"cls\.(predictions|bi_seq_relationship|seq_relationship|imagePredictions|qaPredictions)\."
    r"|bert\.encoder\.(pred_layer|pred_obj_layer)\.|.*\.position_ids$"
)


@dataclass(frozen=True)
class LoadReport:
    """What became of the tensors of a checkpoint and of the encoder.

    `tied` holds names that are one tensor under several names, `skipped` what the file has and this encoder does not
    use (pretraining heads, heads of other tasks), `fresh` the encoder's tensors that the file lacks and that were
    initialised anew (heads, and the image side after a text model).
    """

    source: str
    loaded: tuple[str, ...]
    tied: tuple[tuple[str, ...], ...]
    skipped: tuple[str, ...]
    fresh: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors from {self.source}"]
        for name in ("tied", "skipped", "fresh"):
            if found := getattr(self, name):
                parts.append(f"{len(found)} {name}")
        return ", ".join(parts)


@dataclass
class Problems:
    """What keeps a checkpoint from being loaded, collected so that one error tells all of it."""

    shapes: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def shape(self, name: str, got: Tensor, wanted: Tensor) -> None:
        self.shapes.append(f"{name} is {tuple(got.shape)} in the checkpoint and {tuple(wanted.shape)} in the encoder")

    def raise_for(self, encoder: Encoder, source: str) -> None:
        titles = {
            "shapes": "tensors of another shape",
            "conflicts": "tied tensors that differ (legacy=True takes the image's, as Volta does)",
            "missing": "missing tensors",
            "unexpected": "unexpected tensors",
        }
        lines = [f"  {title}: {_some(getattr(self, key))}" for key, title in titles.items() if getattr(self, key)]
        if lines:
            name = encoder.config.name
            hint = f"is it a checkpoint of another encoder than {name}?"
            raise WeightsError("\n".join([f"{source} does not fit the encoder {name}; {hint}", *lines]))


def _some(names: list[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)}: " + "; ".join(names[:most]) + more


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Tensors by name from a .safetensors, .bin, .pt or .pth file, or from a directory with one under a usual name.

    Files of torch are read with weights_only, so that none can run code. Raises InputNotFound, WeightsError.
    """
    path = Path(path)
    if path.is_dir():
        found = [path / name for name in FILE_NAMES if (path / name).is_file()]
        if not found:
            raise InputNotFound(f"no checkpoint in {path}; it would be called {', '.join(FILE_NAMES)}")
        path = found[0]
    if not path.is_file():
        raise InputNotFound(f"checkpoint {path} does not exist")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            check_unpacked(path)
            state = torch.load(path, map_location="cpu", weights_only=True)
    except WeightsError:
        raise
    except Exception as error:
        raise unreadable(path, error) from error
    for key in WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{path} does not hold a state dict (tensors by name)")
    for name, tensor in state.items():
        check_plain(path, name, tensor)
    return dict(state)


def normalised(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Volta's names: without `module.`, with weight and bias for gamma and beta, bert for roberta."""
    names = {}
    for name, tensor in state.items():
        new = re.sub(r"^module\.", "", name)
        new = re.sub(r"\bgamma$", "weight", re.sub(r"\bbeta$", "bias", new))
        new = re.sub(r"^roberta\.", "bert.", new)
        new = re.sub(r"^lm_head\.dense\.", "cls.predictions.transform.dense.", new)
        new = re.sub(r"^lm_head\.layer_norm\.", "cls.predictions.transform.LayerNorm.", new)
        names[re.sub(r"^lm_head\.", "cls.predictions.", new)] = tensor
    return names


def fill(encoder: Encoder, state: Mapping[str, Tensor], source: str) -> LoadReport:
    """Give an encoder on the meta device the tensors of a Volta state dict.

    Raises WeightsError naming every tensor that is missing (whole heads may be), unexpected, of another shape, or at
    odds with its tied twin.
    """
    state = normalised(state)
    in_file = {match[1] for name in state if (match := encoder.head_names.match(name))}
    for head in encoder.heads.values():
        head.root = next((root for root in head.roots if root in in_file), head.roots[0])
    problems, found, tied, fresh, used = Problems(), {}, [], [], set()
    names = volta_names(encoder)
    optional = encoder.optional + tuple(f"heads.{k}." for k, head in encoder.heads.items() if head.root not in in_file)
    parameters = dict(encoder.named_parameters())
    for own, twins in names.items():
        present = [name for name in twins if name in state]
        used.update(present)
        if not present:
            may_lack = own.startswith(optional)
            (fresh if may_lack else problems.missing).append(own if may_lack else twins[0])
            continue
        if len(present) > 1:
            tied.append(tuple(present))
            if not encoder.legacy and not all(_same(state[present[0]], state[name]) for name in present[1:]):
                problems.conflicts.append(" and ".join(present))
        name = present[-1] if encoder.legacy else present[0]
        if state[name].shape != parameters[own].shape:
            problems.shape(name, state[name], parameters[own])
        found[own] = state[name]
    rest = [name for name in state if name not in used]
    skipped = [name for name in rest if PRETRAINING.match(name) or encoder.head_names.match(name)]
    problems.unexpected = [name for name in rest if name not in set(skipped)]
    problems.raise_for(encoder, source)
    assign(encoder, found)
    for own, parameter in encoder.named_parameters():
        if own.startswith(encoder.config.frozen):
            parameter.requires_grad_(False)
    return LoadReport(source, tuple(found), tuple(tied), tuple(skipped), tuple(fresh))


def _same(a: Tensor, b: Tensor) -> bool:
    if a is b or a.is_meta or b.is_meta:
        return True
    return a.shape == b.shape and (a.data_ptr() == b.data_ptr() or torch.equal(a, b))


def assign(encoder: Encoder, found: Mapping[str, Tensor]) -> None:
    """Copies of the tensors found, in float32, and initial values for all others."""
    for path, module in encoder.named_modules():
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            own = f"{path}.{leaf}" if path else leaf
            value = found[own].detach().to(torch.float32, copy=True) if own in found else torch.empty(parameter.shape)
            if own not in found:
                _initialise(value, leaf, encoder.config.init_std)
            module.register_parameter(leaf, nn.Parameter(value, parameter.requires_grad))


@torch.no_grad()
def _initialise(value: Tensor, leaf: str, std: float) -> None:
    """BERT's: normal weights, biases of 0, layer norms of gain 1."""
    if value.is_meta:
        return
    if leaf == "bias":
        value.zero_()
    elif value.ndim == 1:
        value.fill_(1)
    else:
        value.normal_(0, std)


def save_encoder(encoder: Encoder, path: str | Path) -> None:
    """Write a .safetensors file for `load_encoder`: each tensor once, under its first name in Volta.

    An earlier file at `path` is replaced only when the new one is whole. Raises: DiskError.
    """
    from safetensors.torch import save

    tensors = {names[0]: parameter.detach().contiguous() for names, parameter in encoder.volta_parameters()}
    replace_file(Path(path), save(tensors, metadata={"encoder": encoder.config.name, "names": "volta"}))
