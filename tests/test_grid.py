import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import nbformat
import pytest

from cirl import paths
from cirl.errors import UserError
from cirl.methods.table import METHOD_NAMES
from cirl.run.config import settings
from cirl.run.digest import training_digest
from cirl.run.recipe import PAPER, parse_recipe
from cirl.show import tables
from cirl.study import catalog
from cirl.study.studies import STUDIES

BIN = Path(sys.executable).parent
ITEMS = [f"figure{n}" for n in ("1", "2", "3", "4", "5a", "5b", "5c", "5d", "6")] + [
    f"table{n:02d}" for n in range(1, 15)
]
AUDITS = [f"audit_{word}" for word in ("true_intervention", "recipe", "tau", "selection", "importance", "independence")]
MAIN = {"DeepAll", "Mix", "FACT", "MatchDG", "CIRL"}


def test_every_figure_and_table_of_the_paper_is_owned_by_exactly_one_notebook():
    owned = [item for items in catalog.NOTEBOOKS.values() for item in items]
    beyond = [*AUDITS, "audit_rank", "methods", "curves", "curves_targets", "benchmark", "claims"]
    assert sorted(item for item in owned if not item.startswith("tour")) == sorted([*ITEMS, *beyond])
    without_runs = {stem for stem, item in catalog.ITEMS.items() if item.rows is None and item.notebook != "00_tour"}
    assert without_runs == {"figure1", "figure2", "audit_rank", "benchmark", "claims"}
    assert list(catalog.AUDITS) == AUDITS


def test_every_notebook_exists_and_saves_its_items():
    for notebook, items in catalog.NOTEBOOKS.items():
        source = "\n".join(cell.source for cell in nbformat.read(paths.NOTEBOOKS / f"{notebook}.ipynb", 4).cells)
        for item in items:
            assert item in source or 'f"table{number:02d}"' in source, f"{notebook}: {item}"


def test_the_whole_paper_is_about_a_thousand_runs():
    assert 950 <= len(catalog.all_runs("paper")) <= 1200
    assert len({run.id for run in catalog.all_runs("paper")}) == len(catalog.all_runs("paper"))


def test_every_method_has_a_label_and_a_place_on_the_embedded_data():
    assert set(catalog.LABELS) == set(METHOD_NAMES)
    assert {run.method_name for run in catalog.all_runs("tiny", with_extras=True)} == set(METHOD_NAMES)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 10])
def test_every_row_that_the_paper_prints_is_in_the_study_of_the_whole_paper(number):
    published = tables.published(number)["method"].replace({"ERM": "DeepAll", "DRO": "GroupDRO"})
    assert len(published) > 6 and set(published) <= set(catalog.table_results("paper", number))
    assert {"Mix", "MixStyle"} <= {*catalog.table_results("paper", 2)}  # beyond the paper


def test_the_main_methods_stand_in_every_table_of_every_study():
    for name, this in STUDIES.items():
        for number in this.tables:
            methods = set(catalog.table_results(name, number))
            main = {"tiny": {3: {"DeepAll", "CIRL"}}, "lite": {3: MAIN - {"MatchDG"}}}.get(name, {}).get(number, MAIN)
            assert methods >= main, (name, number)
        assert {"DeepAll", "Mix"} <= set(catalog.table5(name))
        assert {"FACT, classifier at 1x", "CIRL, classifier at 10x"} <= set(catalog.table6(name))


def test_all_methods_are_beyond_what_make_trains():
    assert len(catalog.expected("methods", "tiny")) == 4 * 3 * len(METHOD_NAMES)
    left = set(catalog.all_runs("tiny", with_extras=True)) - set(catalog.all_runs("tiny"))
    trained = {"deepall", "mix", "fact", "matchdg", "cirl", *STUDIES["tiny"].rivals[1]}
    assert {run.method_name for run in left} == set(METHOD_NAMES) - trained


def test_the_audits_add_few_runs_and_only_for_the_recipes():
    def own(name):
        shared = {run for item in catalog.ITEMS if not item.startswith("audit") for run in catalog.expected(item, name)}
        return [run for run in catalog.all_runs(name) if run not in shared]

    audits = {name: {*catalog.expected("audit_recipe", name), *catalog.expected("audit_tau", name)} for name in STUDIES}
    assert all(audits[name].issuperset(own(name)) for name in STUDIES)
    assert len(own("digits")) == 5 and not own("lite")  # digits: the weight of Eq. 10 alone


@pytest.mark.parametrize("name", ["tiny", "digits", "paper"])
def test_the_weight_of_the_printed_equation_is_varied_alone(name):
    runs = [run for runs in catalog.rows("audit_tau", name).values() for run in runs]
    middle = [] if name == "digits" else [0.02]  # an hour of training there
    assert [run.tau for run in runs] == [0.0005, 0.002, 0.01, *middle, 0.05, 2]
    recipe = catalog.equations(STUDIES[name].small)
    assert {(run.recipe, run.target, run.seed) for run in runs} == {(recipe, STUDIES[name].task, 0)}


@pytest.mark.parametrize("name", STUDIES)
def test_the_printed_equations_are_trained_with_the_bound_of_the_gradient_of_the_default(name):
    small = STUDIES[name].small
    default, printed = (
        parse_recipe(recipe) for recipe in (settings(small["dataset"]).recipe, catalog.equations(small))
    )
    assert printed == replace(PAPER, clip=default.clip or PAPER.clip)
    assert (default.clip == 3) == (name in ("tiny", "digits"))


@pytest.mark.parametrize("stem", ["table01", "table05", "table06", "table09", "methods", "audit_recipe"])
def test_every_row_of_what_tiny_compares_has_three_seeds(stem):
    assert all({run.seed for run in runs} == {0, 1, 2} for runs in catalog.rows(stem, "tiny").values())


def test_a_title_says_on_what_an_item_stands():
    assert catalog.title("table01", "digits") == "Table 1" and catalog.title("table02", "paper") == "Table 2"
    assert catalog.title("table05", "tiny") == "Table 5, stand-in on tiny"
    assert catalog.title("table05", "digits") == "Table 5, stand-in on digits_dg"
    assert catalog.title("table03", "lite") == "Table 3, at 96 pixels"
    assert catalog.title("figure1", "tiny") == "Figure 1"


@pytest.mark.parametrize("name", STUDIES)
def test_the_audit_of_the_recipes_changes_one_choice_at_a_time_from_each_end(name):
    rows = {row: runs[0] for row, runs in catalog.audit_recipe(name).items()}
    assert len(rows) == 2 * (1 + len(catalog.SWITCHES)) and len({run.id for run in rows.values()}) == len(rows)
    for row, run in rows.items():
        end, change = row.split(": ")
        base, own = (asdict(run.choices) for run in (rows[f"{end}: as it is"], run))
        changed = {choice: value for choice, value in own.items() if value != base[choice]}
        assert changed.keys() == ({change.split("=")[0]} if "=" in change else set())


def test_without_weights_the_audits_that_look_inside_are_left_as_they_are():
    drawings = "figure1_figure2_figure3_schematics"  # Figure 3 of an untrained network would replace the committed one
    assert drawings not in catalog.notebooks("tiny", weights=False)
    assert drawings in catalog.notebooks("tiny", trained=catalog.core("tiny"))
    drawn = {name for name in catalog.notebooks("tiny", weights=False) if name in catalog.AUDITS}
    assert drawn == {"audit_selection", "audit_tau"}
    assert set(catalog.AUDITS) <= set(catalog.notebooks("tiny"))
    assert set(catalog.AUDITS) - set(catalog.notebooks("paper")) == {"audit_true_intervention"}


def test_a_notebook_without_any_record_is_left_out_and_a_drawing_without_runs_is_not():
    (run,) = (run for run in catalog.expected("table05", "lite") if run.method == "mix")
    drawn = catalog.notebooks("lite", recorded={run.id})
    assert {"table5_ablation", "table_results"} <= drawn.keys() and "table6_importance" not in drawn
    assert "00_tour" in catalog.notebooks("tiny", recorded=set())


def test_the_paper_study_is_the_paper():
    def count(item):
        return len(catalog.expected(item, "paper"))

    assert count("figure5c") == count("figure5d") == 25 * 3
    assert count("table08") == 2 * 5 * 4 * 3 and count("table07") == 5 * 4 * 3
    assert count("table05") == 7 * 4 * 3 and count("table09") == 3 * 4 * 3
    real = {run.dataset for item in catalog.ITEMS for run in catalog.expected(item, "paper") if item != "figure3"}
    assert real == {"digits_dg", "pacs", "officehome", "minidomainnet"}
    assert {run.epochs for run in catalog.expected("table02", "paper")} == {50}


def test_runs_that_items_share_are_the_same_runs():
    main = set(catalog.expected("table02", "paper"))
    assert set(catalog.table5("paper")["CIRL"]) <= main
    assert set(catalog.table9("paper")["random"]) <= main
    assert set(catalog.table7("paper")["512"]) == set(catalog.table8("paper")["N = 512, kappa = 0.6"])
    assert set(catalog.expected("figure4", "paper")) <= main
    assert catalog.expected("table12", "paper") == catalog.expected("table02", "paper")


def test_the_tiny_study_keeps_the_shape_on_the_embedded_data():
    assert {run.dataset for run in catalog.all_runs("tiny")} == {"tiny"}
    left_out = {item for item in catalog.ITEMS if not catalog.has("tiny", item)}
    assert left_out == {"figure5b", "figure5d", *(f"table{n:02d}" for n in (2, 3, 4, 10, 12, 13, 14))}
    assert {run.epochs for run in catalog.all_runs("tiny", True)} == {
        settings("tiny").epochs
    }  # one schedule for every item
    for item in ("table01", "table05", "methods"):
        assert {run.seed for run in catalog.expected(item, "tiny")} == {0, 1, 2}
    assert len(catalog.expected("figure5c", "tiny")) == 25


@pytest.mark.parametrize("call", [lambda: catalog.all_runs("huge"), lambda: catalog.expected("table15", "tiny")])
def test_an_unknown_study_or_item_raises_an_error_that_lists_them(call):
    with pytest.raises(UserError, match=r"allowed: .*(tiny, digits, lite, paper|figure1, figure2)"):
        call()


def snakemake(*arguments, cwd=paths.ROOT):
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "CIRL_ROOT": str(cwd)}
    command = [str(BIN / "snakemake"), *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def test_a_dry_run_of_the_whole_paper_lists_every_run_and_what_is_finished():
    done = snakemake("--dry-run", "--config", "study=paper")
    runs = len(catalog.all_runs("paper"))
    assert done.returncode == 0, done.stderr
    assert f"of {runs} runs finished" in done.stderr
    trained = [line for line in done.stdout.splitlines() if line.startswith("train ")]
    assert int(trained[0].split()[1]) <= runs


def test_the_snakefile_names_the_studies_when_it_gets_another():
    done = snakemake("--dry-run", "--config", "study=huge")
    assert done.returncode != 0 and "tiny, digits, lite, paper" in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["train=never"], "--config train=never is not possible; allowed: yes, no"),
        (["core=1"], "--config core=1 is not possible; allowed: yes, no"),
        (["stduy=paper", "cores=2"], "--config has no cores, stduy; there are study, train, extras, core, missing"),
    ],
)
def test_a_misspelt_name_or_value_of_the_snakefile_does_not_train(given, said):
    done = snakemake("--dry-run", "--config", *given)
    assert done.returncode != 0 and said in done.stderr + done.stdout


def test_what_the_records_have_from_the_present_code_is_not_trained_again(tmp_path):
    (kept, other_code, no_history), wanted = catalog.core("digits")[:3], catalog.all_runs("digits")
    for name in ("Snakefile", "profiles", "notebooks", "cirl"):
        (tmp_path / name).symlink_to(paths.ROOT / name)
    (tmp_path / "data").mkdir()
    codes = {kept: training_digest(kept), other_code: "0123456789", no_history: training_digest(no_history)}
    lines = "".join(f"{run.id},{code}\n" for run, code in codes.items())
    (tmp_path / "data" / "results.csv").write_text(f"id,code\n{lines}")
    (tmp_path / "data" / "history.csv").write_text(f"id,epoch\n{kept.id},0\n{kept.id},1\n{other_code.id},0\n")
    counts = {}
    for missing in ("yes", "no"):
        done = snakemake("--dry-run", "--config", "study=digits", f"missing={missing}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        counts[missing] = dict(line.split() for line in done.stdout.splitlines() if re.fullmatch(r"\w+ +\d+", line))
        assert ("(1 others have records)" in done.stderr) == (missing == "yes")
    assert int(counts["yes"]["train"]) == len(wanted) - 1 and int(counts["no"]["train"]) == len(wanted)
    # the weights of the recorded run are elsewhere, so Figures 4 and 6 stay as they are
    assert counts["no"].keys() - counts["yes"].keys() == {"figure4_figure6_gradcam"}


def test_rendering_leaves_out_what_has_no_record_at_all(tmp_path):
    for name in ("Snakefile", "profiles", "notebooks", "cirl"):
        (tmp_path / name).symlink_to(paths.ROOT / name)
    (tmp_path / "data").mkdir()
    run = next(run for run in catalog.expected("table03", "lite") if run.target == "photo")
    (tmp_path / "data" / "results.csv").write_text(f"id,code\n{run.id},0123456789\n")
    done = snakemake("--dry-run", "--config", "study=lite", "train=no", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    drawn = {line.split()[0] for line in done.stdout.splitlines() if re.fullmatch(r"\w+ +1", line)}
    assert drawn == {"all", "report", "table_results", "curves", "audit_selection"}  # the others are on sketch alone


@pytest.mark.parametrize("value", ["no", "No", "false", "False"])
def test_no_may_be_spelled_as_yaml_does(value):
    done = snakemake("--dry-run", "--config", "study=tiny", f"train={value}", "--", "figures/tiny/table05.md")
    assert done.returncode == 0 and "runs finished" not in done.stderr, done.stderr


def test_deleting_a_run_trains_it_again_and_what_depends_on_it_and_nothing_else(tmp_path):
    """On a copy of the project that has every file of the study, none older than its inputs."""
    for name in ("Snakefile", "profiles", "notebooks", "cirl"):
        source = paths.ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    runs = [tmp_path / "data" / "runs" / run.id / "metrics.json" for run in catalog.all_runs("tiny")]
    items = [
        f"{item}.{kind}"
        for items in catalog.notebooks("tiny").values()
        for item in items
        for kind in catalog.ITEMS[item].kinds
    ]
    for age, files in enumerate([runs, [tmp_path / "figures" / "tiny" / name for name in items]]):
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            os.utime(file, (2e9 + age, 2e9 + age))
    ids = "".join(f"{run.id}\n" for run in catalog.all_runs("tiny"))
    for name in ("data/results.csv", "data/history.csv", "data/executed/tiny/collected", "figures/tiny/report.html"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"id\n{ids}")
        os.utime(file, (2e9 + 2, 2e9 + 2))

    def jobs():
        lines = snakemake("--dry-run", "--config", "study=tiny", cwd=tmp_path).stdout.splitlines()
        counts = [line.split() for line in lines if re.fullmatch(r"\w+ +\d+", line)]
        return {name for name, _ in counts} - {"total", "all"}

    assert jobs() == set()
    (tmp_path / "data" / "runs" / catalog.table9("tiny")["intra"][0].id / "metrics.json").unlink()
    assert jobs() == {"train", "collect", "table9_sampling", "report"}
