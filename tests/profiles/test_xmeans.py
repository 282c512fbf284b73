"""X-means against pyclustering, and as Step 1."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carvyfl.profiles.messages import collect
from carvyfl.profiles.xmeans import bic, kmeans, xmeans, xmeans_types


@pytest.fixture
def library(monkeypatch):
    """Return pyclustering's X-means and k-means classes and the Euclidean metric."""
    monkeypatch.setattr(np, "warnings", warnings, raising=False)  # it expects numpy < 1.24
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyclustering.cluster.kmeans import kmeans as their_kmeans
        from pyclustering.cluster.xmeans import xmeans as their_xmeans
        from pyclustering.utils import distance_metric, type_metric
    return their_xmeans, their_kmeans, distance_metric(type_metric.EUCLIDEAN)


def make_blobs(sizes, dimensions=3, spread=0.01, seed=0):
    """Draw blobs along a line at growing distances.

    The widest gap dwarfs all others, so that every split falls there, whatever
    centres k-means++ draws.
    """
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=dimensions)
    direction /= np.linalg.norm(direction)
    truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    noise = rng.normal(scale=spread, size=(len(truth), dimensions))
    return np.outer(6.0**truth, direction) + noise, truth


def partition(labels):
    return {frozenset(np.flatnonzero(labels == t).tolist()) for t in np.unique(labels)}


def cases():
    """Points, and a cluster of each: random ones, those without variance, and single ones."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        n, d, k = int(rng.integers(2, 40)), int(rng.integers(1, 21)), int(rng.integers(1, 3))
        yield rng.normal(size=(n, d)), np.arange(n) % k
    yield np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([0, 1])
    yield np.ones((4, 2)), np.zeros(4, dtype=np.int64)


@pytest.mark.parametrize(("points", "labels"), cases())
def test_bic_is_the_librarys(library, points, labels):
    their_xmeans, _, metric = library
    clusters = [np.flatnonzero(labels == j).tolist() for j in range(labels.max() + 1)]
    centres = np.stack([points[members].mean(axis=0) for members in clusters])
    theirs = their_xmeans(points, centres, ccore=False, metric=metric)
    expected = theirs._xmeans__bayesian_information_criterion(clusters, centres)
    assert bic(points, labels, centres) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_kmeans_is_the_librarys(library, seed):
    _, their_kmeans, metric = library
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(60, 4))
    start = rng.normal(size=(int(rng.integers(1, 9)), 4)) * (1 + 9 * (seed % 2))  # far: some empty
    tolerance = (0.001, 0.3)[seed % 2]
    theirs = their_kmeans(points, start, tolerance=tolerance, ccore=False, metric=metric).process()
    labels, centres = kmeans(points, start, tolerance)
    assert [np.flatnonzero(labels == j).tolist() for j in range(len(centres))] == (
        theirs.get_clusters()
    )
    np.testing.assert_allclose(centres, theirs.get_centers(), rtol=1e-12)


@pytest.mark.parametrize("sizes", [(20,) * 5, (30, 10, 5), (8,) * 8, (25, 25)])
@pytest.mark.parametrize("seed", range(3))
def test_whole_algorithm_agrees_on_separate_blobs(library, sizes, seed):
    their_xmeans, _, metric = library
    points, truth = make_blobs(sizes, seed=seed)
    start = points[[int(np.argmax(truth == t)) for t in (0, 1)]]
    theirs = their_xmeans(points, start, kmax=len(points), ccore=False, metric=metric).process()
    ours = xmeans(points, initial_centres=start, seed=seed)
    assert partition(ours) == set(map(frozenset, theirs.get_clusters())) == partition(truth)


@given(st.integers(0, 1000), st.integers(1, 12))
@settings(max_examples=40)
def test_labels_are_dense_and_deterministic(seed, n):
    points = np.random.default_rng(seed).integers(0, 4, size=(n, 2)).astype(float)
    labels = xmeans(points, seed=seed)
    assert np.unique(labels).tolist() == list(range(labels.max() + 1))
    np.testing.assert_array_equal(labels, xmeans(points, seed=seed))
    for one in points:  # equal points are never parted
        assert len(np.unique(labels[(points == one).all(axis=1)])) == 1


def updates_of(values):
    return collect(list(values), length=values.shape[1], num_classes=2)


def test_types_of_updates_with_one_client_set_aside():
    points, truth = make_blobs((12,) * 5, dimensions=40)
    points[7] = np.nan
    types = xmeans_types(updates_of(points), seed=1)
    others = np.arange(60) != 7
    assert partition(types.labels[others]) == partition(truth[others])
    assert types.labels[7] == -1
    assert types.set_aside == {7: "holds NaN"}
    assert not types.local
    assert types.names == tuple(f"cluster {i}" for i in range(5))
    assert types.warnings == ()
    mixed = xmeans_types(updates_of(np.random.default_rng(0).normal(size=(60, 20))), seed=0)
    assert any("overlap" in text for text in mixed.warnings)


def test_clusters_are_numbered_by_neighbourhood():
    # Eight clusters on a line in 30 dimensions: their numbers must run along the line.
    rng = np.random.default_rng(4)
    place = rng.permutation(np.repeat(np.arange(8), 10))
    direction = rng.normal(size=30)
    points = np.outer(place * 5.0, direction) + rng.normal(scale=0.01, size=(80, 30))
    types = xmeans_types(updates_of(points), seed=0)
    along = [int(types.labels[np.argmax(place == p)]) for p in range(8)]
    assert along in (list(range(8)), list(range(8))[::-1])
    assert partition(types.labels) == partition(place)


@pytest.mark.parametrize("values", [np.ones((1, 4)), np.ones((6, 4)), np.eye(2, 5)])
def test_tiny_and_identical_federations(values):
    types = xmeans_types(updates_of(values), seed=0)
    assert types.num_types == len(np.unique(values, axis=0))


def test_one_giant_update_leaves_the_others_finite():
    points, _ = make_blobs((10,) * 3, dimensions=25)
    points[0] = 1e38
    types = xmeans_types(updates_of(points), seed=0)
    assert types.labels.min() == 0
    assert np.count_nonzero(types.labels == types.labels[0]) == 1
    assert types.warnings
