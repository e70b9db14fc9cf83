"""VSR in a report, as its paper looks at models: by relation, by how often that is trained on, by training captions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cache import RoivaultError

from .metrics import percent
from .published import Place
from .report_runs import Run
from .report_scores import Estimate, Scores
from .tasks import Selection, load_task
from .tasks.vsr import SAMPLES, sample_size
from .tasks.vsr_relations import category_of

TASKS = ("vsr", "vsr-zeroshot")
FREQUENT = {"vsr": 15, "vsr-zeroshot": 5}  # test captions of which a relation needs more to be drawn
FEWEST = 3  # relations of a correlation
WHOLE = "100%"


@dataclass(frozen=True)
class Relation:
    """A relation of a task: how many test captions have it, and how many to train on; None where that is not known."""

    name: str
    tested: int
    trained: int | None

    @property
    def category(self) -> str:
        return category_of(self.name)


@dataclass(frozen=True)
class Likeness:
    """How the accuracies of relations go with how often each is trained on, over the relations drawn."""

    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float
    relations: int


@dataclass(frozen=True)
class VsrReport:
    """One task.

    Attributes:
        models: in the order of the scores.
        relations: those that were tested, the most frequent in the test set first.
        accuracy: (model, relation) -> accuracy.
        samples: model -> training set -> accuracy, of the whole set last.
        sets: training set -> its captions, the whole one last.
        majority: what always giving the most frequent answer gets; None without annotations.
        annotations: folder of the task's annotations, where it is known.
    """

    task: str
    models: list[str]
    relations: list[Relation]
    accuracy: Mapping[tuple[str, str], Estimate]
    samples: Mapping[str, Mapping[str, Estimate]]
    sets: Mapping[str, int]
    majority: float | None
    annotations: str | None = None

    @property
    def frequent(self) -> list[Relation]:
        return [one for one in self.relations if one.tested > FREQUENT[self.task]]

    @cached_property
    def likeness(self) -> dict[str, Likeness]:
        """Of each model that has relations enough."""
        return {model: found for model in self.models if (found := self._likeness(model))}

    def _likeness(self, model: str) -> Likeness | None:
        from scipy.stats import pearsonr, spearmanr

        pairs = [
            (one.trained, self.accuracy[model, one.name].value)
            for one in self.frequent
            if one.trained is not None and (model, one.name) in self.accuracy
        ]
        trained, scores = zip(*pairs, strict=True) if pairs else ((), ())
        if len(pairs) < FEWEST or len(set(trained)) == 1 or len(set(scores)) == 1:
            return None
        linear, ranked = pearsonr(trained, scores), spearmanr(trained, scores)
        values = (float(one) for one in (linear.statistic, linear.pvalue, ranked.statistic, ranked.pvalue))
        return Likeness(*values, len(pairs))


def vsr_reports(runs: Sequence[Run], scores: Scores, sizes: Mapping[Place, int]) -> list[VsrReport]:
    """One for each split of VSR that was tested."""
    found = []
    for task in TASKS:
        places = [one for one in scores.places if one.task == task]
        if places:
            folder = next((run.annotations for run in runs if run.task == task and run.annotations), None)
            found.append(_report(task, places, scores, sizes, folder))
    return found


def _report(
    task: str, places: Sequence[Place], scores: Scores, sizes: Mapping[Place, int], folder: str | None
) -> VsrReport:
    trained, majority = _annotated(task, folder)
    whole = Place("zero-shot", task, "en", "0", "accuracy")
    tested = {
        one.metric.partition("=")[2]: sizes[one]
        for one in places
        if one.metric.startswith("accuracy/relation=") and one[:4] == whole[:4]
    }
    relations = [
        Relation(name, count, None if trained is None else trained[name])
        for name, count in sorted(tested.items(), key=lambda item: (-item[1], item[0]))
    ]
    models = [model for model in scores.models if any((model, one) in scores.measured for one in places)]
    accuracy = {
        (model, one.name): estimate
        for model in models
        for one in relations
        if (estimate := scores.get(model, whole._replace(metric=f"accuracy/relation={one.name}")))
    }
    total = trained.total() if trained is not None else load_task(task, ".").counts[Selection("train")].rows
    sets = {name: sample_size(name, total) for name in SAMPLES} | {WHOLE: total}
    samples = {}
    for model in models:
        points = {name: whole._replace(setup="few-shot", shots=name) for name in SAMPLES} | {WHOLE: whole}
        curve = {name: estimate for name, place in points.items() if (estimate := scores.get(model, place))}
        if len(curve) > 1:
            samples[model] = curve
    return VsrReport(task, models, relations, accuracy, samples, sets, majority, folder)


def _annotated(task: str, folder: str | None) -> tuple[Counter | None, float | None]:
    """How often each relation is trained on, and the share of the most frequent answer of the test set; None where
    their files are not there."""
    if folder is None:
        return None, None
    known, found = load_task(task, folder), []
    for split in ("train", "test"):
        try:
            found.append(known.load(Selection(split)))
        except RoivaultError:
            found.append(None)
    train, test = found
    trained = None if train is None else Counter(one.facts["relation"] for one in train)
    answers = Counter(one.answer for one in test or ())
    return trained, percent(max(answers.values()), answers.total()) if answers else None
