"""Types by PCA and X-means on all updates together: the paper's Step 1.

X-means (Pelleg and Moore, 2000) grows k-means by splitting clusters wherever the Bayesian
information criterion prefers two to one. The paper runs pyclustering 0.10.1.2, which is
unmaintained, slow and reseeds the global generators; its particulars are kept here: the criterion's
noise variance averages distances, not their squares, and the penalty is counted once per cluster; a
cluster of two different points always splits; clusters that lose all points vanish. But among
candidates for the second centre of k-means++ is no point that was not drawn.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from carvyfl.core.randomness import generator
from carvyfl.profiles.messages import Messages
from carvyfl.profiles.types import ClientTypes, size_warnings
from carvyfl.profiles.vectors import Floats

Labels = npt.NDArray[np.int64]

REMEDY = "use `types='bias-profile'` or `types='given'`, or set `groups`"
DIMENSIONS = 20  # d, that PCA keeps; fewer if there are fewer clients or weights
MAX_ROUNDS = 100  # of k-means
TOLERANCE = 0.001  # in units of the updates: the movement of a centre at which k-means stops
START_CANDIDATES, SPLIT_CANDIDATES = 3, 5  # k-means++ draws per centre
POOR_SILHOUETTE = 0.25  # below, clusters overlap more than they are apart


def xmeans_types(updates: Messages, *, seed: int) -> ClientTypes:
    """Cluster the clients' updates by PCA and X-means (Algorithm 1).

    Both are joint functions of all updates: one client can change everybody's type. So the result
    is not local, and what is built on it is certified given the groups only. Clusters are numbered
    so that neighbours are alike. Clients set aside take no part.
    """
    from sklearn.decomposition import PCA

    usable = updates.usable
    exact = updates.values[usable].astype(np.float64)  # a giant would round the others away
    pca = PCA(n_components=min(DIMENSIONS, *exact.shape), svd_solver="full")
    with np.errstate(divide="ignore", invalid="ignore"):  # variance shares of identical updates
        points: Floats = np.asarray(pca.fit_transform(exact), dtype=np.float64)
    numbers = _ordered(points, xmeans(points, seed=seed))
    labels = np.full(len(updates), -1, dtype=np.int64)
    labels[usable] = numbers
    sizes = np.bincount(numbers)
    names = tuple(f"cluster {i}" for i in range(len(sizes)))
    warnings = size_warnings(sizes, REMEDY) + _separation_warnings(points, numbers, seed)
    return ClientTypes(labels, "xmeans", False, names, warnings, updates.set_aside)


def xmeans(points: Floats, *, seed: int, initial_centres: Floats | None = None) -> Labels:
    """Return clusters 0 … L-1, each nonempty, of points, shape (n, d).

    ``initial_centres`` has shape (k, d); None draws 2 by k-means++.
    """
    centres = initial_centres
    if centres is None:
        rng = generator(seed, "xmeans", "start")
        centres = _plus_plus(points, min(2, len(points)), START_CANDIDATES, rng)
    for level in range(len(points)):  # every level but the last adds a cluster
        before = len(centres)
        labels, centres = kmeans(points, centres)
        split = _split(points, labels, centres, seed, level)
        if len(split) == before:
            break
        centres = split
    return kmeans(points, centres)[0]


def kmeans(points: Floats, centres: Floats, tolerance: float = TOLERANCE) -> tuple[Labels, Floats]:
    """Run Lloyd's algorithm until no centre moves further than ``tolerance``.

    Returns clusters 0 … k-1, each nonempty, and their means; k may be below that of the centres.
    scikit-learn's ``KMeans`` stops by another rule and refills empty clusters.
    """
    from scipy.spatial.distance import cdist

    labels = np.zeros(len(points), dtype=np.int64)
    for _ in range(MAX_ROUNDS):
        nearest = cdist(points, centres).argmin(axis=1)
        nonempty, labels = np.unique(nearest, return_inverse=True)
        before, centres = centres, _means(points, labels)
        if len(nonempty) < len(before):
            continue
        if (np.linalg.norm(centres - before, axis=1) <= tolerance).all():
            break
    return labels.astype(np.int64), centres


def bic(points: Floats, labels: Labels, centres: Floats) -> float:
    """Score a clustering; higher is better.

    With n_j points in cluster j, N in all, K clusters in d dimensions and
    σ² = Σ‖x - centre‖ / (N - K), the sum over clusters of

    n_j ln(n_j / N) - n_j/2 ln 2π - n_j d/2 ln σ² - (n_j - K)/2 - p/2 ln N,

    p = (K - 1) + dK + 1. Infinite where N = K or all distances vanish.
    """
    sizes = np.bincount(labels, minlength=len(centres)).astype(np.float64)
    total, k, d = len(points), len(centres), int(points.shape[1])
    distances = float(np.linalg.norm(points - centres[labels], axis=1).sum())
    if total <= k or distances == 0.0:
        return math.inf
    noise = math.log(distances / (total - k))
    likelihood = (
        float((sizes * np.log(sizes / total)).sum())
        - 0.5 * total * (math.log(2 * math.pi) + d * noise)
        - 0.5 * (total - k * k)
    )
    penalty: float = 0.5 * (k + d * k) * math.log(total)  # p = (K - 1) + dK + 1
    return likelihood - k * penalty


def _split(points: Floats, labels: Labels, centres: Floats, seed: int, level: int) -> Floats:
    """Replace centres by two each where BIC prefers that."""
    chosen: list[Floats] = []
    for cluster, centre in enumerate(centres):
        members = points[labels == cluster]
        parent = centre[None]
        if len(members) > 1:
            rng = generator(seed, "xmeans", "split", level, cluster)
            start = _plus_plus(members, 2, min(SPLIT_CANDIDATES, len(members)), rng)
            halves, children = kmeans(members, start)
            whole = np.zeros(len(members), dtype=np.int64)
            if len(children) == 2 and bic(members, whole, parent) < bic(members, halves, children):
                chosen.append(children)
                continue
        chosen.append(parent)
    return np.concatenate(chosen)


def _plus_plus(points: Floats, count: int, candidates: int, rng: np.random.Generator) -> Floats:
    """Choose starting centres by k-means++: each further one is the farthest of ``candidates``."""
    chosen = [int(rng.integers(len(points)))]
    squared = np.full(len(points), np.inf)
    while len(chosen) < count:
        squared = np.minimum(squared, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
        total = squared.sum()
        weights = squared / total if total > 0 else None
        drawn = rng.choice(len(points), size=candidates, p=weights)
        chosen.append(int(drawn[squared[drawn].argmax()]))
    return points[chosen]


def _means(points: Floats, labels: Labels) -> Floats:
    """Return the mean of every cluster."""
    sums = np.zeros((int(labels.max()) + 1, points.shape[1]))
    np.add.at(sums, labels, points)
    return sums / np.bincount(labels)[:, None]


def _ordered(points: Floats, clusters: Labels) -> Labels:
    """Renumber clusters so that neighbouring numbers have neighbouring centroids."""
    from scipy.cluster.hierarchy import leaves_list, linkage

    centroids = _means(points, clusters)
    if len(centroids) < 3:
        return clusters
    leaves = leaves_list(linkage(centroids, method="average", optimal_ordering=True))
    return np.argsort(leaves)[clusters]


def _separation_warnings(points: Floats, labels: Labels, seed: int) -> tuple[str, ...]:
    """Warn where the clusters overlap, by the mean silhouette."""
    from sklearn.metrics import silhouette_score

    most = min(len(points), 2000)  # pairwise distances: a sample is enough for a mean
    rng = generator(seed, "xmeans", "silhouette")
    sample = np.sort(rng.permutation(len(points))[:most])
    if not 2 <= len(np.unique(labels[sample])) < most:
        return ()
    score = float(silhouette_score(points[sample], labels[sample]))
    if score >= POOR_SILHOUETTE:
        return ()
    return (f"clusters overlap (mean silhouette {score:.2f}, good is above 0.5); {REMEDY}",)
