"""The peer pfl: its simulated backend, one process per core by torchrun (SCAFFOLD)."""

import task
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import CrossSiloUserSampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops import get_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn


class Net(nn.Module):
    """The task's model with the two methods that pfl asks for."""

    def __init__(self):
        super().__init__()
        self.net = task.model()

    def loss(self, inputs, labels):
        """Return the loss of a batch."""
        self.train()
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def metrics(self, inputs, labels):
        """Return the metrics of a batch; not evaluated in this task."""
        return {"loss": Weighted(self.loss(inputs, labels).item(), 1)}


class Tick(TrainingProcessCallback):
    """Notes the end of every round."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Tick, and go on."""
        clock.tick()
        return False, Metrics()


users = [str(number) for number in range(task.num_clients())]
datasets = {
    user: PyTorchTensorDataset(task.client(number), user_id=user)
    for number, user in enumerate(users)
}
# A user stays with one process, which keeps its control variate in memory.
sampler = CrossSiloUserSampler("minimize_reuse", user_ids=users)
data = FederatedDataset(datasets.__getitem__, sampler)
net = Net()
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
parameters = SCAFFOLDParams(
    central_num_iterations=task.ROUNDS,
    evaluation_frequency=1_000_000,
    train_cohort_size=len(users),
    val_cohort_size=0,
    population=len(users),
    use_gradient_as_control_variate=False,
    user_state_storage=InMemoryUserStateStorage(),
)
local = NNTrainHyperParams(
    local_batch_size=task.BATCH, local_num_epochs=1, local_learning_rate=task.LR
)
backend = SimulatedBackend(training_data=data, val_data=data)

clock = task.Clock()
SCAFFOLD().run(parameters, backend, model, local, callbacks=[Tick()])
if get_ops().distributed.global_rank == 0:
    task.report(clock, task.loss(net.net, range(len(users))))
