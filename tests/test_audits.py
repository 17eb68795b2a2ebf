"""Each measure of the audits on made-up data whose answer is known."""

import hashlib
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import record
from scipy.special import hyp2f1

from cirl import losses, metrics, paths
from cirl.analysis import attention, audits, properties
from cirl.data import tiny
from cirl.data.batches import loaders
from cirl.data.layouts import index
from cirl.methods import build
from cirl.run import checkpoint, files
from cirl.run.config import Run
from cirl.study import records

SHAPES, DOMAINS = 240, 4
DIGIT = np.arange(SHAPES) % 10


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def flat(R):
    """R as rows, with digit, domain and shape of each."""
    shape, domain = np.divmod(np.arange(R.shape[0] * R.shape[1]), R.shape[1])
    return R.reshape(-1, R.shape[2]), DIGIT[shape], domain, shape


def of_shape(rng, N=6):
    """What the shape alone decides."""
    return np.repeat(rng.normal(size=(SHAPES, 1, N)), DOMAINS, 1)


def of_style(N=4):
    """What the domain alone decides: one dimension each."""
    return np.tile(np.eye(DOMAINS, N), (SHAPES, 1, 1))


def test_what_the_shape_alone_decides_is_invariant_and_keeps_the_domain_to_itself(rng):
    R = of_shape(rng)
    np.testing.assert_allclose(properties.invariance(R), 1)
    r, _, domain, shape = flat(R)
    assert properties.probe(r, domain, shape) == pytest.approx(25, abs=3)


def test_what_the_style_alone_decides_is_not_invariant_and_tells_the_domain(rng):
    R = of_style()
    np.testing.assert_allclose(properties.invariance(R), -1 / 3)
    r, digit, domain, shape = flat(R)
    assert properties.probe(r, domain, shape) == 100
    assert properties.probe(r, digit, shape) == pytest.approx(10, abs=3)
    np.testing.assert_allclose(properties.single_dimensions(r, digit, shape), 10, atol=3)


def test_noise_of_every_image_has_no_invariance(rng):
    assert np.abs(properties.invariance(rng.normal(size=(2000, DOMAINS, 5)))).max() < 0.05


def test_half_shape_half_noise_is_half_invariant(rng):
    R = np.repeat(rng.normal(size=(4000, 1, 3)), DOMAINS, 1) + rng.normal(size=(4000, DOMAINS, 3))
    np.testing.assert_allclose(properties.invariance(R), 0.5, atol=0.03)


def test_an_intervention_into_one_style_feels_that_style_alone(rng):
    R = of_shape(rng)
    R[:, 3] = rng.normal(size=R[:, 3].shape)
    np.testing.assert_allclose(properties.invariance(R[:, :3]), 1)
    assert np.abs(properties.invariance(R, into=3)).max() < 0.2


def test_a_dead_dimension_has_no_correlation_and_is_left_out(rng):
    R = of_shape(rng)
    R[..., 2] = 7.0
    assert np.isnan(properties.invariance(R)[2]) and np.isfinite(np.delete(properties.invariance(R), 2)).all()
    assert 2 not in properties.live(flat(R)[0])
    assert np.isfinite(properties.linear_dependence(flat(R)[0]))


def test_a_probe_never_sees_the_shape_that_it_is_asked_about(rng):
    """Each shape has a unique mark, which gives the digit away if that shape was seen."""
    r, digit, _, shape = flat(np.repeat(np.eye(SHAPES)[:, None], DOMAINS, 1))
    assert properties.probe(r, digit, shape) < 20


def test_single_dimensions_and_the_inferior_half_on_digits_written_into_one_dimension(rng):
    r, digit, _, shape = flat(of_shape(rng))
    r[:, 1] = digit + 0.1 * rng.normal(size=len(digit))
    alone = properties.single_dimensions(r, digit, shape)
    assert alone[1] > 95 and np.delete(alone, 1).max() < 25
    W = np.ones((10, 6))
    W[:, [1, 3, 5]] = 0.1
    np.testing.assert_array_equal(properties.inferior_half(r, W), [1, 3, 5])
    np.testing.assert_array_equal(properties.inferior_half(r * [1, 1, 0.1, 0.1, 0.1, 1], np.ones((10, 6))), [2, 3, 4])


def test_independent_gaussians_have_no_dependence_of_either_kind(rng):
    r = rng.normal(size=(1500, 8))
    assert properties.linear_dependence(r) < 0.04
    assert abs(properties.distance_dependence(r)) < 0.01


def test_a_copied_dimension_is_wholly_dependent(rng):
    r = np.repeat(rng.normal(size=(400, 1)), 2, 1)
    assert properties.linear_dependence(r) == pytest.approx(1)
    assert properties.distance_dependence(r) == pytest.approx(1)


def test_a_square_is_found_by_distances_and_not_by_correlation(rng):
    x = rng.normal(size=(3000, 1))
    r = np.hstack([x, x**2])
    assert properties.linear_dependence(r) < 0.1
    assert properties.distance_dependence(r) > 0.15


def test_a_dimension_in_which_one_image_stands_out_is_left_out_of_the_distances(rng):
    r = rng.normal(size=(300, 5))
    r[:, 4] = 0
    alone = r.copy()
    alone[7, 4] = 3.0
    assert properties.distance_dependence(alone) == pytest.approx(properties.distance_dependence(r))


def test_every_validation_shape_is_seen_under_every_domain():
    images, digits = properties.restyled()
    assert images.shape == (360, 4, 32, 32, 3) and np.bincount(digits).tolist() == [36] * 10
    assert not (images[:, 0] == images[:, 1]).all((1, 2, 3)).any()
    mixed = properties.amplitude_mixed(images[:20, 0])
    assert mixed.shape == (20, 32, 32, 3) and (mixed != images[:20, 0]).any((1, 2, 3)).all()


# recipes


@pytest.mark.parametrize("loss", ["frobenius", "barlow", "released"])
@pytest.mark.parametrize("B", [9, 17, 40])
def test_gradient_descent_finds_the_diagonal_that_the_rank_allows(loss, B):
    N = 32
    theory = audits.best_diagonal(N, B, audits.off_diagonal_weight(loss, N))
    found = audits.found_diagonal(N, B, loss, steps=600)
    assert theory - 2.5 / N <= found <= theory + 0.01  # a direction or two is spent on the norms of the columns


def test_the_published_batch_allows_a_diagonal_of_six_hundredths():
    assert audits.best_diagonal(512, 32, 1.0) == pytest.approx(31 / 512)
    assert audits.best_diagonal(512, 600, 1.0) == 1
    assert audits.best_diagonal(512, 32, audits.off_diagonal_weight("released", 512)) > 0.999


def test_the_weights_of_the_off_diagonal_are_those_of_the_losses():
    N = 5
    diagonal = torch.eye(N)
    diagonal[0, 0] = 0.0
    off = torch.eye(N)
    off[0, 1] = 1.0
    for name, loss in losses.FACTORIZATION.items():
        assert (loss(off) / loss(diagonal)).item() == pytest.approx(audits.off_diagonal_weight(name, N))


@pytest.mark.parametrize(("draws", "low", "high"), [("independent", 0.8, 1.0), ("recursive", -0.1, 0.3)])
def test_only_independent_draws_follow_the_logits(draws, low, high, rng):
    method = build(Run(recipe=f"released+draws={draws}"), 10).eval()
    method.masker.layers = torch.nn.Identity()
    assert low <= audits.mask_follows_logits(method, 2 * rng.normal(size=(20, 128))) <= high


# selection, importance, independence


def test_pairs_that_change_their_order_are_counted():
    one = pd.Series([1.0, 2.0, 3.0, 4.0])
    assert audits.changed_pairs(one, one * 2) == 0
    assert audits.changed_pairs(one, -one) == 6
    assert audits.changed_pairs(one, pd.Series([2.0, 1.0, 3.0, 4.0])) == 1


def test_zeroing_costs_what_a_dimension_carries(rng):
    """Dimension 0 decides between two classes; dimension 1 is not read; dimension 2 is read and always zero."""
    y = np.arange(100) % 2
    r = np.stack([2.0 * y - 1, rng.normal(size=100), np.zeros(100)], 1)
    W, b = np.array([[-1.0, 0.0, 3.0], [1.0, 0.0, -3.0]]), np.array([0.1, 0.0])
    np.testing.assert_allclose(audits.zeroing_cost(r, y, W, b), [50, 0, 0])


def test_a_rank_correlation_with_a_constant_is_unknown():
    assert audits.rank_correlation(np.arange(5.0), np.arange(5.0) ** 3) == pytest.approx(1)
    assert np.isnan(audits.rank_correlation(np.arange(5.0), np.zeros(5)))


def test_the_debiased_degree_of_independent_dimensions_is_zero_at_every_size(rng):
    r_o, r_a = rng.normal(size=(2, 4000, 20))
    table = audits.degrees_by_size(r_o, r_a, [10, 40, 160], draws=60).groupby("B").mean()
    np.testing.assert_allclose(table["degree"], table["floor"], rtol=0.05)
    assert (table["debiased"].abs() < 0.05 * table["floor"]).all()


def test_the_debiased_degree_does_not_depend_on_the_size_of_the_sample(rng):
    """Correlation 0.4 between all pairs: 0.16 N (N - 1), whatever the sample."""
    common = rng.normal(size=(20000, 1))
    r = np.sqrt(0.4) * common + np.sqrt(0.6) * rng.normal(size=(20000, 12))
    r_a = np.sqrt(0.4) * common + np.sqrt(0.6) * rng.normal(size=(20000, 12))
    table = audits.degrees_by_size(r, r_a, [20, 80, 320], draws=150).groupby("B").mean()
    np.testing.assert_allclose(table["debiased"], 0.16 * 12 * 11, rtol=0.05)
    assert table["degree"].iloc[0] > 1.05 * table["degree"].iloc[-1]


@pytest.mark.parametrize("B", [16, 33, 100])
def test_the_estimate_of_a_squared_correlation_is_the_hypergeometric_function(B):
    x = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    exact = 1 - (B - 3) / (B - 2) * (1 - x) * hyp2f1(1, 1, B / 2, 1 - x)
    np.testing.assert_allclose(audits.squared_correlation(x, B), exact, atol=1e-6)


def test_a_copied_dimension_has_the_whole_degree_and_a_dead_one_none(rng):
    r = np.repeat(rng.normal(size=(50, 1)), 3, 1)
    r[:, 2] = 1.0
    assert audits.degrees(r, r) == pytest.approx({"live": 2, "degree": 2, "floor": 2 / 49, "debiased": 2}, abs=1e-4)


# attention


class Corner:
    """A method whose class 1 depends only on the brightness of the upper left quarter."""

    def predict(self, x):
        bright = x[:, :, :8, :8].mean((1, 2, 3))
        return torch.stack([torch.full_like(bright, 2.5), 10 * bright], 1)


def test_the_share_of_a_map_inside_a_region_and_a_blank_map():
    maps = np.zeros((3, 4, 4))
    maps[0, :2], maps[1, 0, 0], maps[1, 3, 3] = 1, 3, 1
    inside = np.zeros((3, 4, 4), dtype=bool)
    inside[:, :, :2] = True
    np.testing.assert_allclose(attention.share_inside(maps, inside), [0.5, 0.75, np.nan])


def test_blanking_hides_the_top_of_the_map_behind_the_mean_colour(rng):
    x = torch.from_numpy(rng.random((2, 3, 10, 10))).float()
    maps = np.zeros((2, 10, 10))
    maps[:, :2] = 1
    hidden = attention.blanked(x, maps)
    torch.testing.assert_close(hidden[:, :, 2:], x[:, :, 2:])
    torch.testing.assert_close(hidden[:, :, :2], x.mean((2, 3), keepdim=True).expand(-1, -1, 2, 10))


def test_a_map_of_what_decides_costs_more_than_a_random_one_and_a_map_of_the_rest_less(rng):
    x = torch.zeros(200, 3, 16, 16)
    x[:, :, :8, :8] = 1
    y = torch.ones(200, dtype=torch.long)
    where = np.zeros((200, 16, 16))
    where[:, :8, :8] = 1
    right = attention.deletion(Corner(), x, y, where)
    wrong = attention.deletion(Corner(), x, y, np.roll(where, (8, 8), (1, 2)))
    assert right["deletion"].mean() > 0.05 and wrong["deletion"].mean() < -0.005
    np.testing.assert_allclose(right["top"] - right["random"], right["deletion"], atol=1e-6)
    assert wrong["top"].abs().max() < 0.05


def test_a_summary_of_images_has_intervals_over_them():
    images = pd.DataFrame({"row": "CIRL", "target": "street", "seed": 0, "deletion": [1.0, 2.0, 3.0]})
    (line,) = attention.summary(images, ["deletion"]).to_dict("records")
    assert line["images"] == 3 and line["deletion"] == 2
    assert line["deletion_high"] - 2 == pytest.approx(4.3027 / np.sqrt(3), abs=1e-3)


def test_the_strokes_of_tiny_are_a_small_part_of_the_image():
    table = tiny.table()
    share = np.array([attention.strokes(image).mean() for _, image in table.groupby("domain").head(5).iterrows()])
    assert (share > 0.02).all() and (share < 0.6).all()


@pytest.fixture
def looked(workspace):
    """A run with weights that was looked at and collected: the run, the index, the look."""
    run = Run(method="deepall")
    weights = checkpoint.serialized(build(run, 10).state_dict())
    record(run, 70, weights=hashlib.sha256(weights).hexdigest())
    files.write(checkpoint.folder(run) / "model.pt", weights)
    records.collect([run], "tiny")
    table = index("tiny")
    return run, table, attention.look(run, table)


def same(one, other):
    pd.testing.assert_frame_equal(one.values, other.values, check_dtype=False, rtol=1e-6)
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("images", "maps", "predicted"))


def test_what_a_run_attends_to_is_shown_after_its_weights_are_gone(looked):
    run, table, look = looked
    assert len(look.images) == 10 and [*table["label"][look.images]] == [*range(10)] and look.maps.max() == 255
    assert {*table["domain"][look.images]} == {run.target} and len(look.values) == 10 * tiny.PER_CLASS
    shutil.rmtree(checkpoint.folder(run))
    assert same(attention.look(run, table), look)
    assert attention.look(run, table, per_class=2) is None  # only the usual number is kept


@pytest.mark.parametrize("here", [True, False])
def test_maps_of_other_weights_are_not_shown(here, looked):
    run, table, look = looked
    other = checkpoint.serialized({name: value + 0.01 for name, value in build(run, 10).state_dict().items()})
    record(run, 70, weights=hashlib.sha256(other).hexdigest())
    files.write(checkpoint.folder(run) / "model.pt", other)
    records.collect([run], "tiny")
    if here:
        assert not np.array_equal(attention.look(run, table).maps, look.maps)
    else:
        shutil.rmtree(checkpoint.folder(run))
        assert attention.look(run, table) is None


def test_a_target_without_weights_of_the_first_seed_is_shown_with_the_next_that_all_methods_have(looked):
    run, _, _ = looked  # deepall on street, seed 0
    later = [replace(each, seed=2) for each in (run, replace(run, method="cirl"))]
    for each in later:
        record(each, 70)
        files.write(checkpoint.folder(each) / "model.pt", checkpoint.serialized(build(each, 10).state_dict()))
    shutil.rmtree(checkpoint.folder(run))  # what it attends to is kept
    alone, both = {"DeepAll": [run]}, {"DeepAll": [run], "CIRL": [replace(run, method="cirl")]}
    assert attention.with_looks(alone, (0, 1, 2)) == alone
    assert attention.with_looks(both, (0, 1, 2)) == {"DeepAll": later[:1], "CIRL": later[1:]}
    assert attention.with_looks(both, (0, 1)) == both  # nothing to show, so the runs that are missing
    print_too = {row: [replace(runs[0], target="print"), *runs] for row, runs in both.items()}
    assert [run.seed for run in attention.with_looks(print_too, (0, 2))["CIRL"]] == [0, 2]


def test_a_damaged_file_of_maps_is_made_again(looked):
    run, table, look = looked
    file = paths.ATTENTION / f"{run.id}.npz"
    file.write_bytes(file.read_bytes()[:1000])
    assert same(attention.look(run, table), look) and len(file.read_bytes()) > 1000


# runs


def test_the_views_are_those_of_the_records():
    run = Run(method="deepall")
    method, data = build(run, 10), loaders(run)
    recorded = metrics.evaluate(method, data)
    method.eval()
    r_o, r_a, y = audits.views(method, data)
    assert audits.degrees(r_o, r_a)["degree"] == pytest.approx(recorded["independence"], rel=1e-3)
    own = np.nan_to_num(properties.correlations(r_o, r_a))  # the record counts a dead dimension as 0
    assert own.mean() == pytest.approx(recorded["invariance"], abs=1e-3)
    assert len(y) == len(data.parts["source_val"])
    x = data.table.images[data.parts["target"][:5]]
    seen = method.features(torch.from_numpy(x).permute(0, 3, 1, 2) / 255).detach().numpy()
    np.testing.assert_allclose(properties.features(method, x), seen, rtol=1e-4, atol=1e-5)


def test_a_run_without_weights_is_missing(workspace):
    whole, bare, none = (Run(method="deepall", seed=seed) for seed in (0, 1, 2))
    for run in (whole, bare):
        record(run, 70)
    (checkpoint.folder(whole) / "model.pt").write_bytes(b"")
    table, ready = audits.with_weights({"DeepAll": [whole, bare], "Mix": [none]})
    assert ready == [("DeepAll", whole)] and table["row"].tolist() == ["DeepAll"]
    assert table.attrs == {
        "expected": 3,
        "missing": sorted([bare.id, none.id]),
        "skipped": {},
        "other_code": [],
        "here": 1,
    }


# inside


@pytest.fixture
def opened(workspace):
    """A run of CIRL with weights, recorded and collected, whose inside was measured: the run and the numbers."""
    run = Run(method="cirl")
    torch.manual_seed(0)
    weights = checkpoint.serialized(build(run, 10).state_dict())
    record(run, 70, weights=hashlib.sha256(weights).hexdigest())
    files.write(checkpoint.folder(run) / "model.pt", weights)
    records.collect([run], "tiny")
    return run, audits.inside({"CIRL": [run]}, "source_val")[1]


def test_what_is_inside_a_run_is_shown_after_its_weights_are_gone(opened):
    run, measured = opened
    shutil.rmtree(checkpoint.folder(run))
    (kept,) = audits.inside({"CIRL": [run]}, "source_val")[1].to_dict("records")
    assert kept["live"] == measured["live"].item() > 0
    assert kept["mask"] == pytest.approx(measured["mask"].item(), rel=1e-5)


def test_what_was_inside_other_weights_is_not_shown(opened):
    run, _ = opened
    shutil.rmtree(checkpoint.folder(run))
    file = paths.DATA / "results.csv"
    table = pd.read_csv(file).assign(model_sha256="0" * 64)
    table.to_csv(file, index=False)
    assert audits.inside({"CIRL": [run]}, "source_val")[1][["live", "mask"]].isna().all(axis=None)


def test_new_weights_are_measured_again_and_other_runs_are_kept(opened):
    run, measured = opened
    other = replace(run, seed=1)
    dead = build(other, 10).state_dict()
    dead = {name: torch.zeros_like(value) if "backbone" in name else value for name, value in dead.items()}
    for each in (other, run):
        files.write(checkpoint.folder(each) / "model.pt", checkpoint.serialized(dead))
        record(each, 60, weights=hashlib.sha256(checkpoint.serialized(dead)).hexdigest())
        found = audits.inside({"CIRL": [each]}, "source_val")[1]
        assert found["live"].item() == 0 < measured["live"].item()
        kept = pd.read_csv(paths.DATA / "inside.csv")
        assert set(kept["id"]) == {run.id, other.id} and kept["id"].is_unique
