"""The peer FedLab: its standalone pipeline, clients one after another in one process (SCAFFOLD)."""

import task
import torchvision_shim  # noqa: F401
from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset


class Clients(FedDataset):
    """The task's clients."""

    def __init__(self):
        self.sets = [TensorDataset(*task.client(n)) for n in range(task.num_clients())]

    def get_dataloader(self, id, batch_size, type="train"):
        """Return the batches of a client."""
        return DataLoader(self.sets[id], batch_size=batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    """FedLab's pipeline, which calls ``evaluate`` after every round."""

    def evaluate(self):
        """Note the end of a round."""
        clock.tick()


handler = ScaffoldServerHandler(task.model(), global_round=task.ROUNDS, sample_ratio=1.0)
handler.setup_optim(lr=1.0)
trainer = ScaffoldSerialClientTrainer(task.model(), num_clients=task.num_clients())
trainer.setup_dataset(Clients())
trainer.setup_optim(epochs=1, batch_size=task.BATCH, lr=task.LR)

clock = task.Clock()
Pipeline(handler, trainer).main()
task.report(clock, task.loss(handler.model, range(task.num_clients())))
