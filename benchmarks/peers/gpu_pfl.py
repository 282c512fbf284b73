"""The peer pfl on the GPU: its simulated backend in one process (FedAvg, SCAFFOLD)."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import torch
from gpu_task import BATCH, LR, Task, time_serial
from gpu_torch import TorchMeter, losses, model, no_tf32, tensors
from torch import nn

WARM_UP = 1.5
"""Its first round evaluates every client, before and after; it does not count."""


class Net(nn.Module):
    """The model with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model().train()

    def loss(self, inputs, labels):
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def metrics(self, inputs, labels):
        """Return the metrics of a batch, for the first round alone."""
        from pfl.metrics import Weighted

        return {"loss": Weighted(self.loss(inputs, labels).item(), 1)}


def clock(meter: TorchMeter) -> tuple[Any, list[float]]:
    """Return a callback that notes when every round ends, and its notes."""
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    ends: list[float] = []

    class Clock(TrainingProcessCallback):
        """Notes the end of every round."""

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            """Note it, and go on."""
            meter.wait()
            ends.append(time.perf_counter())
            return False, Metrics()

    return Clock(), ends


def run(algorithm: str, net: Any, data: Any, clients: int, rounds: int, callback: Any) -> None:
    """Let pfl train the first clients for so many rounds."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.data.user_state import InMemoryUserStateStorage
    from pfl.hyperparam.base import NNTrainHyperParams

    sampler = MinimizeReuseUserSampler([str(client) for client in range(clients)])
    federated = FederatedDataset(data.__getitem__, sampler)
    backend = SimulatedBackend(training_data=federated, val_data=federated)
    common = {
        "central_num_iterations": rounds,
        "evaluation_frequency": 1_000_000,
        "train_cohort_size": clients,
        "val_cohort_size": 0,
    }
    local = NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LR)
    if algorithm == "scaffold":
        parameters = SCAFFOLDParams(
            **common,
            population=clients,
            use_gradient_as_control_variate=False,
            user_state_storage=InMemoryUserStateStorage(),
        )
        SCAFFOLD().run(parameters, backend, net, local, callbacks=[callback])
    else:
        FederatedAveraging().run(
            NNAlgorithmParams(**common), backend, net, local, callbacks=[callback]
        )


def measure(variant: str, task: Task) -> dict[str, Any]:
    """Time ``fedavg`` or ``scaffold``; the clients' data are on the device."""
    os.environ["PFL_PYTORCH_DEVICE"] = task.device
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.model.pytorch import PyTorchModel

    no_tf32()
    inputs, labels = tensors(task)
    data = {
        str(client): PyTorchTensorDataset(own, user_id=str(client))
        for client, own in enumerate(zip(inputs, labels, strict=True))
    }
    meter, module = TorchMeter(task.device), Net()
    net = PyTorchModel(
        module,
        torch.optim.SGD,
        torch.optim.SGD(module.parameters(), lr=1.0),
        amp_dtype=torch.bfloat16 if task.precision == "bf16" else None,
    )

    def rounds(clients: int, count: int) -> list[float]:
        callback, ends = clock(meter)
        run(variant, net, data, clients, count + 1, callback)
        return [stop - start for start, stop in itertools.pairwise(ends)]

    found = time_serial(task, rounds, meter, WARM_UP)
    return {**found, **losses(dict(module.net.named_parameters()))}
