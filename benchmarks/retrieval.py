"""What does retrieval cost: every caption with every picture, from a store, beside Volta; and does a killed run go on?

    python benchmarks/retrieval.py [--volta DIR] [--encoder uniter] [--threads 2] [--rounds 3] [--captions 2000]

Without rounds, or without captions, that part is left out.

First 32 captions of 12 to 20 tokens with 32 pictures of 36 regions, by an encoder of full size in float32: here all of
`evaluate`'s work, from the store to the matrix of scores; Volta (DIR holds the package, from a checkout of e-bug/volta
or e-bug/iglue) is given two of the captions with all pictures as its data sets give them, padded to 80 tokens, and none
of its reading of pictures. Rounds alternate; the table has medians of CPU seconds a pair, and what they make of 2,000 x
2,000 pairs, which nobody ran: an extrapolation.

Then `roivault evaluate` on `--captions` captions and as many pictures with a shrunken encoder: killed (SIGKILL) when a
third of the scores are there, run again, and its scores are compared with those of a run that nobody killed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from encoders import LENGTHS, PUBLISHED_LENGTH, build_volta, timed

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cache import Regions, StoreWriter, open_store  # noqa: E402
from consumers.data import TaskData  # noqa: E402
from consumers.encoders import Tokenizer, encoder_config, load_encoder, registry, save_encoder  # noqa: E402
from consumers.encoders.config import StreamConfig, single_stream  # noqa: E402
from consumers.encoders.small_tokenizer import make_tokenizer  # noqa: E402
from consumers.evaluation import score_captions  # noqa: E402
from consumers.tasks import Example  # noqa: E402

SIDE, REGIONS, VOLTA_CAPTIONS = 32, 36, 2
GATE = 2.5
WIDTH = StreamConfig(hidden=24, heads=2, ffn=48, dropout=0.0, attention_dropout=0.0)
SHRUNKEN = replace(
    encoder_config("uniter-small"), name="uniter-shrunken", layout=single_stream(1), text=WIDTH, image=WIDTH,
    feature_dim=64, pool_size=24,
)  # fmt: skip
FULL = 2000 * 2000  # pairs of xFlickr&CO


class Numbers:
    """Stands for a tokenizer: a text is the numbers of its tokens."""

    def __call__(self, texts, truncation, max_length, padding):
        return {"input_ids": [[int(token) for token in text.split()][:max_length] for text in texts]}


def write_store(path: Path, count: int, dim: int) -> Path:
    rng = np.random.default_rng(0)
    with StoreWriter(path, "float16") as writer:
        for start in range(0, count, 100):
            writer.write([picture(str(n), rng, dim) for n in range(start, min(start + 100, count))])
    return path


def picture(key: str, rng: np.random.Generator, dim: int) -> Regions:
    corners = np.sort(rng.random((REGIONS, 2, 2), np.float32), 1).reshape(REGIONS, 4) * 400
    return Regions(key, 400, 400, corners, rng.random((REGIONS, dim), np.float32) * 2)


class Full:
    """32 captions and 32 pictures for an encoder of full size, ours and Volta's with the same weights."""

    def __init__(self, folder: Path, name: str, volta: Path | None):
        self.encoder = load_encoder(name, heads=("xvnli", "retrieval"), legacy=True).eval()
        config, rng = self.encoder.config, np.random.default_rng(0)
        texts = [rng.integers(1000, 30000, LENGTHS[n % len(LENGTHS)]) for n in range(SIDE)]
        examples = [Example(str(n), " ".join(map(str, ids)), ((str(n),),)) for n, ids in enumerate(texts)]
        store = open_store(write_store(folder / "full.roi", SIDE, config.feature_dim))
        self.data = TaskData(examples, store, config, Tokenizer(Numbers(), config), PUBLISHED_LENGTH)
        self.matrix = folder / "scores.npy"
        self.volta = build_volta(volta, name).eval() if volta else None
        if self.volta:
            self.volta.load_state_dict(self.encoder.to_volta(), strict=True)

    def ours(self) -> None:
        self.matrix.unlink(missing_ok=True)
        score_captions(self.encoder, self.data, self.matrix)

    @torch.no_grad()
    def theirs(self) -> None:
        features, locations, mask = self.data.regions(range(SIDE))
        found = []
        for row in range(VOLTA_CAPTIONS):
            ids, used = (torch.zeros(1, PUBLISHED_LENGTH, dtype=torch.long) for _ in range(2))
            ids += self.encoder.config.pad_id
            tokens, there = self.data.text([row])
            ids[:, : tokens.shape[1]], used[:, : tokens.shape[1]] = tokens, there
            ids, used = ids.expand(SIDE, -1).contiguous(), used.expand(SIDE, -1).contiguous()
            arguments = (ids, features.clone(), locations, "TASK8", torch.zeros_like(ids), used, mask.long())
            found.append(self.volta(*arguments)[0].squeeze(1).numpy())
        self.scores = np.stack(found)


def per_pair(name: str, volta: Path | None, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        full = Full(Path(folder), name, volta)
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(timed(full.ours)[0] / SIDE**2)
            if full.volta:
                theirs.append(timed(full.theirs)[0] / (SIDE * VOLTA_CAPTIONS))
        found = {"cpu ms a pair": statistics.median(ours) * 1e3}
        if full.volta:
            difference = np.abs(np.load(full.matrix)[:VOLTA_CAPTIONS] - full.scores).max()
            ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
            found |= {"volta's cpu ms a pair": statistics.median(theirs) * 1e3, "ratio": statistics.median(ratios)}
            found |= {"least": min(ratios), "most": max(ratios), "wanted": GATE, "score difference": float(difference)}
    return found | {"extrapolated to 2,000 x 2,000, cpu hours": statistics.median(ours) * FULL / 3600}


def command_line() -> None:
    """The front door, which knows the shrunken encoder as well."""
    import roivault

    registry._configs()[SHRUNKEN.name] = SHRUNKEN
    raise SystemExit(roivault.main(sys.argv[1:]))


def killed_and_resumed(count: int, threads: int) -> dict[str, float]:
    """Run `roivault evaluate`, kill it, run it again, and once more in a new folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = write_store(folder / "pictures.roi", count, SHRUNKEN.feature_dim)
        rng = np.random.default_rng(0)
        words = [f"word{n}" for n in range(300)]
        captions = [" ".join(rng.choice(words, LENGTHS[n % len(LENGTHS)] - 2)) for n in range(count)]
        tokenizer = make_tokenizer(captions, folder / "tokenizer", SHRUNKEN.vocab_size)
        test = folder / "xFlickrCO" / "annotations" / "en" / "test.jsonl"
        test.parent.mkdir(parents=True)
        rows = ({"sentences": [text], "id": str(n), "img_path": f"{n}.jpg"} for n, text in enumerate(captions))
        test.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        save_encoder(load_encoder(SHRUNKEN, heads=("retrieval",)), folder / "weights.safetensors")
        line = [
            sys.executable, "-c", "from retrieval import command_line; command_line()", "evaluate", "--json",
            "--encoder", SHRUNKEN.name, "--task", "xflickrco", "--device", "cpu", "--precision", "float32",
            "--checkpoint", folder / "weights.safetensors", "--store", store, "--annotations", folder,
            "--tokenizer", tokenizer, "--out",
        ]  # fmt: skip
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(Path(__file__).parent)}
        begin = time.monotonic()
        first = subprocess.Popen([*line, folder / "out"], env=environment, stdout=subprocess.PIPE)
        scores = None
        while scores is None or np.isfinite(scores).sum() < count**2 / 3:
            if first.poll() is not None:
                raise SystemExit(f"evaluate ended by itself: {first.returncode}")
            time.sleep(0.5)
            matrix = next((folder / "out").glob("*_scores.npy"), None)
            scores = matrix and np.load(matrix, mmap_mode="r")
        first.kill()
        first.wait()
        seconds = time.monotonic() - begin
        there = np.load(matrix)
        done = np.isfinite(there)
        print(f"killed after {seconds:.0f} s with {done.sum():,} of {there.size:,} scores; again", file=sys.stderr)
        begin = time.monotonic()
        second = subprocess.run([*line, folder / "out"], env=environment, stdout=subprocess.PIPE)
        again = time.monotonic() - begin
        whole = subprocess.run([*line, folder / "whole"], env=environment, stdout=subprocess.PIPE)
        if second.returncode or whole.returncode:
            raise SystemExit(f"exit codes: {second.returncode} of the second run, {whole.returncode} in a new folder")
        scores = [np.load(folder / out / matrix.name) for out in ("out", "whole")]
        if not np.isfinite(scores[0]).all() or not np.array_equal(*scores):
            raise SystemExit("a run that was killed and one that was not came to different scores")
        result, expected = (json.loads(run.stdout)[0]["result"] for run in (second, whole))
        recalls = {name: value for name, value in result.items() if name[:3] in ("ir_", "tr_")}
        if any(expected[name] != value for name, value in recalls.items()):
            raise SystemExit(f"recalls differ: {result}, and without the kill {expected}")
    return {
        "pairs": there.size, "scores at the kill": int(done.sum()), "seconds until then": seconds,
        "seconds of the rest": again, "IR@10": recalls["ir_r10"], "TR@10": recalls["tr_r10"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--volta", type=Path, help="folder with the package volta and its config/")
    parser.add_argument("--encoder", default="uniter")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--captions", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    found = {}
    if args.rounds:
        found[f"{args.encoder}, {SIDE} x {SIDE}, float32"] = per_pair(args.encoder, args.volta, args.rounds)
    if args.captions:
        pairs = f"{args.captions:,} x {args.captions:,}"
        found[f"{SHRUNKEN.name}, {pairs}"] = killed_and_resumed(args.captions, args.threads)
    if args.json:
        print(json.dumps(found))
        return
    for name, facts in found.items():
        print(name)
        for fact, value in facts.items():
            print(f"    {fact:42}{value:>14,.2g}" if value < 0.1 else f"    {fact:42}{value:>14,.2f}")


if __name__ == "__main__":
    main()
