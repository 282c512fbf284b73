"""Lets FedLab import torchvision beside a CPU build of torch.

The packaged torchvision does not load its own operators there, and stops at two
of them that it looks up while it is imported. Declaring them is enough: the task
uses nothing of torchvision. Import this before FedLab.
"""

import torch

library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
