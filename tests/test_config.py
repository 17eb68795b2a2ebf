import json
from dataclasses import asdict, fields
from itertools import product
from pathlib import Path

import pytest

from cirl.data.pretrained import weights_file
from cirl.errors import UserError
from cirl.gumbel import DRAWS
from cirl.losses import FACTORIZATION
from cirl.methods.base import decay
from cirl.methods.table import METHOD_NAMES
from cirl.run.config import BACKBONES, SAMPLING, SETTINGS, Run
from cirl.run.parameters import refuse_unknown
from cirl.run.parse import plain
from cirl.run.recipe import CHOICES, PAPER, RELEASED, parse_recipe, recipe_name


def test_none_stands_for_the_papers_value_of_the_data_set():
    digits, pacs = Run("digits_dg", "svhn"), Run("pacs", "sketch")
    office = Run("officehome", "art")
    assert (digits.backbone, digits.dim, digits.batch_size, digits.lr, digits.tau) == ("convnet", 256, 128, 0.05, 2)
    assert (pacs.backbone, pacs.weights, pacs.batch_size, pacs.epochs, pacs.tau) == ("resnet18", "imagenet", 16, 50, 5)
    assert (office.kappa, office.eta) == (0.8, 0.2)
    assert Run("pacs", "sketch", backbone="resnet50").dim == 2048


def test_the_number_of_draws_is_that_of_the_paper_and_of_the_code():
    def k(recipe, dataset="pacs", target="sketch", **more):
        return Run(dataset, target, recipe=recipe, **more).k

    assert k("paper", "digits_dg", "svhn") == 153
    assert (k("paper"), k("released")) == (307, 308)
    assert k("paper", backbone="resnet50") == 1228
    assert k("paper", "officehome", "art") == 409


def test_the_id_is_readable_and_names_only_departures():
    assert Run("pacs", "sketch").id == "pacs-resnet18-cirl-sketch-s0"
    assert Run("pacs", "sketch", tau=2, kappa=0.5).id == "pacs-resnet18-cirl-sketch-s0-kappa0.5-tau2"
    assert Run("pacs", "sketch", kappa=0.6, tau=5).id == "pacs-resnet18-cirl-sketch-s0"
    assert Run(advm=False, lr=1e-5).id == "tiny-convnet32-cirl-street-s0-advm0-lr0.00001"


def test_different_runs_have_different_ids_and_equal_runs_the_same():
    values = {
        "dataset": ["tiny", "digits_dg"],
        "method": ["deepall", "cirl", "mixup", "mixup+alpha=0.3"],
        "seed": [0, 1],
        "kappa": [None, 0.5, 0.65],
        "tau": [None, 1, 10, 0.1],
        "sampling": SAMPLING,
        "advm": [True, False],
        "recipe": [None, "paper", "released", "released+loss=barlow", "paper+clip=2"],
    }
    runs = set()
    for choice in product(*values.values()):
        run = dict(zip(values, choice, strict=True))
        runs.add(Run(target={"tiny": "photo", "digits_dg": "syn"}[run["dataset"]], **run))
    assert len({run.id for run in runs}) == len(runs)


def test_a_run_comes_back_from_its_config_with_the_same_id():
    for run in (Run(), Run("pacs", "photo", "deepall", seed=3, recipe="released", weights="none", dim=64)):
        back = Run(**json.loads(json.dumps(asdict(run))))
        assert back == run and back.id == run.id


def test_a_folder_or_a_file_of_weights_makes_a_safe_and_unique_id(tmp_path):
    for root in ("a b", "a_b"):
        for domain in ("one $(x)", "two"):
            (tmp_path / root / domain).mkdir(parents=True)
    ids = [Run(f"folder:{tmp_path / root}", "one $(x)", weights="/some/w.pt").id for root in ("a b", "a_b")]
    assert len(set(ids)) == 2
    assert all(character.isalnum() or character in "._=+-" for id_ in ids for character in id_)


def test_values_arrive_as_papermill_hands_them_over(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "8").mkdir()
    run = Run(f"folder:{tmp_path}", 7, tau=2)
    assert (run.target, run.tau, type(run.tau)) == ("7", 2.0, float)
    text = Run(kappa="0.5", epochs="3", seed="7", cint="False", augment="true", lr="1e-2")
    assert text == Run(kappa=0.5, epochs=3, seed=7, cint=False, augment=True, lr=0.01)


def test_a_domain_that_papermill_reads_as_a_number_is_hinted_at(tmp_path):
    for domain in ("01", "02"):
        (tmp_path / domain).mkdir()
    assert Run(f"folder:{tmp_path}", "01").target == "01"
    with pytest.raises(UserError, match=r"target='1' is not possible; allowed: 01, 02 .* write -r target 01\)"):
        Run(f"folder:{tmp_path}", 1)


def test_a_value_however_small_is_kept_and_named():
    tiny, none = Run(recipe="paper+clip=1e-13"), Run(recipe="paper+clip=0")
    assert tiny.choices.clip == 1e-13 and none.choices.clip == 0 and tiny.id != none.id
    assert Run(tau=1e-13).id != Run(tau=0).id and "e-" not in Run(tau=1e-13).id
    assert Run(tau=0.1 + 0.2).id != Run(tau=0.3).id
    assert [plain(value) for value in (0.6, 5.0, 1e-5, 100.0, 1e20)] == ["0.6", "5", "0.00001", "100", "1" + "0" * 20]


def test_an_id_is_short_enough_for_a_file_name_and_still_unique():
    values = dict(kappa=0.123456789, tau=1e-200, eta=0.3, lr=1e-100, weight_decay=1e-60)
    runs = [Run(seed=seed, recipe=f"paper+clip={clip}", **values) for seed in (0, 1) for clip in (1e-9, 2e-9)]
    assert all(len(run.id) <= 200 for run in runs) and len({run.id for run in runs}) == 4


def test_an_impossible_path_raises_user_error():
    with pytest.raises(UserError, match="the folder cannot be read"):
        Run("folder:a\0b", "one")
    with pytest.raises(UserError, match="there is no file"):
        weights_file("resnet18", Run("pacs", "photo", weights="~nobody/a\0b").weights)


def test_an_unreadable_root_folder_raises_user_error(tmp_path, monkeypatch):
    def refused(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(UserError, match=r"the folder cannot be read \(Permission denied\)"):
        Run(f"folder:{tmp_path}", "one")


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("dataset", "imagenet", "tiny, digits_dg, pacs, officehome, minidomainnet, folder:"),
        ("dataset", "folder:/nowhere/at/all", "no folder /nowhere/at/all"),
        ("target", "mars", "plain, photo, street, print"),
        ("method", "magic", "deepall, mix, cirl"),
        ("backbone", "vgg", "convnet, convnet32, resnet18, resnet50"),
        ("recipe", "secret", "paper, released"),
        ("recipe", "released+speed=9", "loss, draws"),
        ("recipe", "released+loss=l2", "frobenius, released, barlow"),
        ("recipe", "paper+clip=much", "a number"),
        ("recipe", "paper+clip=-1", "at least 0"),
        ("kappa", 0, "between 0 and 1"),
        ("kappa", 1.0, "between 0 and 1"),
        ("kappa", "much", "between 0 and 1"),
        ("eta", 1.5, "from 0 to 1"),
        ("eta", -0.1, "from 0 to 1"),
        ("tau", -1, "at least 0"),
        ("tau", float("nan"), "at least 0"),
        ("lr", 0, "above 0"),
        ("seed", -1, "at least 0"),
        ("seed", 0.5, "whole number"),
        ("seed", 2**64, "below 2**63"),
        ("epochs", "2.5", "whole number"),
        ("lr", "fast", "above 0"),
        ("dim", 1, "at least 2"),
        ("batch_size", 1, "C needs two images"),
        ("epochs", 0, "at least 1"),
        ("image_size", 8, "at least 16"),
        ("sampling", "outer", "random, intra, inter"),
        ("schedule", "warm", "cosine, constant, or increasing shares"),
        ("schedule", "0.8+0.4", "cosine, constant, or increasing shares"),
        ("schedule", 1.5, "cosine, constant, or increasing shares"),
        ("augment", "yes", "True, False"),
        ("recipe", "released+originals=1", "partner=pair with originals=2"),
        ("cint", "yes", "True, False"),
    ],
)
def test_a_bad_value_is_named_with_what_is_allowed(field, value, allowed):
    with pytest.raises(UserError) as error:
        Run(**{field: value})
    assert field in str(error.value) and str(value) in str(error.value) and allowed in str(error.value)
    assert "\n" not in str(error.value)


def test_a_users_mistake_shows_no_traceback_in_a_notebook():
    error = UserError("kappa=2 is not possible.")
    assert error._render_traceback_() == ["UserError: kappa=2 is not possible."]


def test_inter_domain_sampling_needs_two_sources(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match="two source domains"):
        Run(f"folder:{tmp_path}", "a", sampling="inter")


def test_recipes_are_spelled_in_one_way():
    assert recipe_name("released+draws=independent+loss=barlow") == "released+loss=barlow+draws=independent"
    assert recipe_name("released+loss=released") == "released"
    assert parse_recipe("paper") == PAPER and parse_recipe("released") == RELEASED
    assert recipe_name("paper+clip=2.0") == recipe_name("paper+clip=2")


def test_a_recipe_can_be_given_as_changes_of_the_default():
    assert Run(recipe="+draws=independent").recipe == recipe_name(Run().recipe + "+draws=independent")
    deepall, cirl = (Run("pacs", "photo", name, recipe="+originals=1+partner=any") for name in ("deepall", "cirl"))
    assert deepall.choices.head_lr == 1 and cirl.choices.head_lr == 10  # the tenfold rate stays CIRL's own
    with pytest.raises(UserError, match="the choices loss, draws"):
        Run(recipe="+speed=9")


def test_the_two_recipes_differ_in_every_row_of_the_ledger_that_is_a_choice():
    same = {"ramp"}  # without it Eq. 10 as written does not train
    for field in fields(PAPER):
        assert (getattr(PAPER, field.name) == getattr(RELEASED, field.name)) == (field.name in same), field.name


def test_names_agree_across_the_package():
    assert tuple(METHOD_NAMES) == METHOD_NAMES
    assert CHOICES["loss"] == tuple(FACTORIZATION) and CHOICES["draws"] == tuple(DRAWS)
    assert all(known.backbone in BACKBONES for known in SETTINGS.values())


def test_the_learning_rate_follows_the_papers_schedule():
    digits = [decay(Run("digits_dg", "svhn", recipe="paper"), epoch) for epoch in range(50)]
    assert [digits.count(pytest.approx(rate)) for rate in (1, 0.1, 0.01)] == [20, 20, 10]
    assert [decay(Run("pacs", "photo", recipe="paper"), e) for e in (39, 40)] == [1, pytest.approx(0.1)]
    assert [decay(Run("pacs", "photo", recipe="released"), e) for e in (38, 39)] == [1, pytest.approx(0.1)]
    cosine = [decay(Run("minidomainnet", "real"), epoch) for epoch in range(60)]
    assert cosine[0] == 1 and cosine == sorted(cosine, reverse=True) and cosine[30] == pytest.approx(0.5)


OWN = "dataset: str = 'tiny'  # help\nepochs: int = None  # help\nseed: int = 0  # help"


@pytest.mark.parametrize(
    ("injected", "said"),
    [
        ("epoch = 2", "no parameter 'epoch'; did you mean 'epochs'?"),
        ("seed = 1\nquux = None", "no parameter 'quux'; there are dataset, epochs, seed"),
    ],
)
def test_a_parameter_that_the_notebook_does_not_have_is_refused(injected, said):
    with pytest.raises(UserError) as error:
        refuse_unknown(["", OWN, f"# Parameters\n{injected}\n", "import torch"])
    assert said in str(error.value)


def test_known_parameters_and_other_cells_are_accepted():
    refuse_unknown(["", OWN, '# Parameters\nseed = 1\ndataset = "a"\n', "epoch = 3", "%matplotlib inline", OWN])
    refuse_unknown(["", OWN, "epoch = 3"])
