"""What anticlustering compares: a vector for every client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from carvyfl.core.archives import read_npz, write_npz
from carvyfl.core.errors import CarvyError
from carvyfl.profiles.messages import Rows

Floats = npt.NDArray[np.float64]

HEAVIEST = 4.0  # a client weighs at most so many times the median one, whatever size it claims
MOSTLY_CHANCE = 0.8  # from this part on, differences between clients count as chance


@dataclass(frozen=True, eq=False)
class Vectors:
    """Vectors of all clients, each a function of its client's message, but for the scale.

    ``rows`` is float32 of shape (N, d), zero for a client that was set aside. ``by_chance``, 0…1,
    is how much of their differences would be there if all clients' data came from the same
    source; ``advice`` says what else to try where that is nearly all of it.
    """

    rows: Rows
    by_chance: float
    advice: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know: that profiles bring nothing, where it is so."""
        if self.by_chance < MOSTLY_CHANCE:
            return ()
        return (
            f"{100 * self.by_chance:.0f} % of what the clients' profiles differ by is the chance "
            "of sampling: groups formed by profile are no better here than random ones "
            f"(`balanced`), whose certificate also covers Step 1{self.advice}",
        )


def save_vectors(path: Path, vectors: Vectors) -> None:
    """Write vectors as an npz file; the file is complete or unchanged."""
    write_npz(path, {"rows": vectors.rows, "by_chance": np.asarray(vectors.by_chance)})


def load_vectors(path: Path, num_clients: int) -> Vectors:
    """Read what :func:`save_vectors` wrote; a damaged file is refused."""
    rows, by_chance = read_npz(path, ("rows", "by_chance")).values()
    usable = rows.dtype == np.float32 and rows.ndim == 2 and len(rows) == num_clients
    if not usable or not np.isfinite(rows).all() or by_chance.shape != ():
        raise CarvyError(f"{path}: no profiles of {num_clients} clients; run it again")
    return Vectors(rows, float(by_chance))


def weighed(rows: Floats, samples: Floats) -> Floats:
    """Return rows (n, d) times the client's size over that of the median client, 4 at most.

    A group's sum then stands for its pooled data.
    """
    return rows * np.minimum(samples / np.median(samples), HEAVIEST)[:, None]


def chance(rows: Floats, errors: Floats) -> float:
    """Return how much of the differences between rows (n, d) is chance, 0…1.

    The mean expected squared error of a row, over the mean squared distance from the mean row.
    """
    differ = float(((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean())
    return min(1.0, float(errors.mean()) / differ) if differ > 0 else 1.0


def placed(rows: Floats, clients: npt.NDArray[np.int64], num_clients: int) -> Rows:
    """Return the rows of these clients among those of all, which are zero."""
    everybody = np.zeros((num_clients, rows.shape[1]), dtype=np.float32)
    everybody[clients] = rows
    return everybody
