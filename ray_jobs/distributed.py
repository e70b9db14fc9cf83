"""One fine-tuning run on several processes or nodes: Ray Train starts them, torch averages their gradients (DDP)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cache import InfrastructureLost, UsageError

from .ray_environment import prepare_environment

if TYPE_CHECKING:
    from consumers.runs import FinetuneRun

RESULT, STOP = "result.json", "stop"  # files in the folder of the run; of the second only its being there tells
POLL_SECONDS = 0.5


def finetune_together(
    run: FinetuneRun,
    out: str | Path,
    workers: int,
    address: str | None = None,
    wandb: str | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Fine-tune with `workers` processes that share every batch, each with a GPU where there are GPUs.

    The folder must be one that all of them see; the run continues in it as one process alone would.

    Args:
        workers: at most the items of a micro-batch, so that each has some of every one.
        stop: once it says so, the workers end after the update at work; the run can be continued.

    Returns: what `consumers.runs.finetune` returns.

    Raises:
        UsageError: more workers than a micro-batch has items.
        InfrastructureLost: the cluster or a worker was lost; the same call continues.
    """
    if workers > (micro := run.resolved.micro):
        raise UsageError(f"{workers} workers cannot share micro-batches of {micro} items; lower --accumulate")
    address = prepare_environment(address)
    from .ray_cluster import Cluster

    cluster = Cluster(address)
    try:
        import ray.train
        from ray.train.torch import TorchTrainer

        gpus = sum(node.gpus for node in cluster.nodes) > 0 and run.device != "cpu"
        folder = os.path.abspath(out)
        result, stopped = Path(folder, RESULT), Path(folder, STOP)
        for left in (result, stopped):
            left.unlink(missing_ok=True)
        trainer = TorchTrainer(
            _work,
            train_loop_config={"run": run, "folder": folder, "here": os.getcwd(), "wandb": wandb},
            scaling_config=ray.train.ScalingConfig(num_workers=workers, use_gpu=gpus),
            run_config=ray.train.RunConfig(storage_path=os.path.join(folder, "ray")),
        )
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="training") as pool:  # else Ray would take the signals
                fitting = pool.submit(trainer.fit)
                while not wait([fitting], POLL_SECONDS).done:
                    if stop():
                        stopped.touch()
                fitting.result()
            return json.loads(result.read_text("utf-8"))
        except Exception as error:
            cause = _deliberate(error)
            if cause is not None:
                raise cause from error
            raise InfrastructureLost(f"training together failed: {error}. Run the same line again") from error
        finally:
            stopped.unlink(missing_ok=True)
    finally:
        cluster.close()


def _work(config: dict[str, Any]) -> None:
    """In each worker, where Ray Train has set up torch.distributed. The first one leaves the result: what is reported
    without a checkpoint does not reach the driver."""
    import ray.train

    from consumers import runs

    os.chdir(config["here"])
    stopped = Path(config["folder"], STOP)
    result = runs.finetune(config["run"], config["folder"], stop=stopped.exists, wandb=config["wandb"])
    if ray.train.get_context().get_world_rank() == 0:
        runs.write_json(Path(config["folder"], RESULT), result)


def _deliberate(error: BaseException | None) -> BaseException | None:
    """The error of ours that a worker ended with."""
    from cache import RoivaultError

    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, RoivaultError):
            return one
        seen.add(id(one))
        waiting += [one.__cause__, one.__context__, *getattr(one, "worker_failures", {}).values()]
    return None
