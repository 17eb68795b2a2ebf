"""Kills, damage, two at once, full disks, untrusted files: nothing is lost, nothing is wrong in silence."""

import json
import os
import pickle
import platform
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from test_runs import short, train

from cirl import metrics, paths
from cirl.data import batches, cache
from cirl.errors import UserError
from cirl.methods.deepall import DeepAll
from cirl.run import checkpoint, files, lock

TOLD = 3  # exit code of a child that left with a sentence


def child(do):
    """A process that does it and ends; its number."""
    pid = os.fork()
    if pid:
        return pid
    try:
        do()
        os._exit(0)
    except UserError:
        os._exit(TOLD)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def finished(run):
    """All that a finished run has: its metrics, its history and its weights."""
    place = checkpoint.folder(run)
    weights = torch.load(place / "model.pt", weights_only=True)
    return json.loads((place / "metrics.json").read_text()), (place / "history.csv").read_text(), weights


def assert_same(one, other):
    assert one[:2] == other[:2]
    assert all(torch.equal(one[2][name], other[2][name]) for name in one[2])


@pytest.fixture
def whole(folder):
    """A run that nothing disturbed: the run, what it left, and a workspace in which it is not there any more."""
    run = short(folder)
    train(run)
    result = finished(run)
    shutil.rmtree(checkpoint.folder(run))
    return run, result


class TestKills:
    @pytest.mark.slow
    def test_twenty_kills_at_random_moments_change_nothing(self, folder):
        run = short(folder, "cirl", epochs=40, lr=0.001)
        train(run)
        result = finished(run)
        shutil.rmtree(checkpoint.folder(run))
        chance, kills = random.Random(0), 0
        while not checkpoint.is_finished(run):
            pid = child(lambda: train(run))
            if kills < 25:
                time.sleep(chance.uniform(0.02, 0.5))
                os.kill(pid, signal.SIGKILL)
            kills += code(pid) == -signal.SIGKILL
        assert kills >= 20
        assert_same(finished(run), result)
        assert {file.name for file in checkpoint.folder(run).iterdir()} == {
            *("config.json", "history.csv", "model.pt", "metrics.json")
        }

    @pytest.mark.slow
    @pytest.mark.parametrize("call", ["fsync", "replace", "unlink"])
    def test_a_kill_at_every_single_write_changes_nothing(self, call, whole, monkeypatch):
        """Before a file is whole, before it gets its name, before an old one goes; also model.pt and metrics.json."""
        run, result = whole
        kills = 0
        for nth in range(1, 100):
            pid = child(lambda nth=nth: self.train_and_die(run, call, nth))
            ended = code(pid)
            train(run)
            assert_same(finished(run), result)
            shutil.rmtree(checkpoint.folder(run))
            if ended == 0:
                break
            assert ended == -signal.SIGKILL
            kills += 1
        assert kills >= {"fsync": 8, "replace": 8, "unlink": 2}[call]

    def train_and_die(self, run, call, nth):
        kept, left = getattr(os, call), [nth]

        def mortal(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return kept(*arguments, **options)

        setattr(os, call, mortal)
        train(run)

    def test_a_kill_in_the_middle_of_the_cache_leaves_none_and_the_next_makes_it(self, folder):
        run = short(folder)

        def die(path, size, kept=cache.decode):
            if path.name == "07.PNG":
                os.kill(os.getpid(), signal.SIGKILL)
            return kept(path, size)

        def make():
            cache.decode = die
            batches.loaders(run)

        assert code(child(make)) == -signal.SIGKILL
        assert not [*paths.CACHE.glob("*.npy")]
        assert len(batches.loaders(run).table.images) == 72
        assert [file.suffix for file in paths.CACHE.iterdir()] == [".npy"]


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file):
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, cut, empty])
class TestDamage:
    def test_a_damaged_state_is_told_and_the_one_before_it_used(self, damage, whole):
        run, result = whole
        train(run, stop_after=2)
        damage(checkpoint.folder(run) / "last.pt")
        data_, learner = batches.loaders(run), DeepAll(run, 2)
        with pytest.warns(UserWarning, match=r"last\.pt is damaged"):
            assert len(checkpoint.resume(run, learner, data_)) == 1  # the first of two epochs
        train(run)
        assert_same(finished(run), result)

    def test_where_no_state_is_whole_the_run_begins_anew(self, damage, whole):
        run, result = whole
        train(run, stop_after=2)
        for name in checkpoint.STATES:
            damage(checkpoint.folder(run) / name)
        with pytest.warns(UserWarning, match="is damaged") as told:
            train(run)
        assert len(told) == 2
        assert_same(finished(run), result)

    def test_damaged_weights_of_a_finished_run_are_refused(self, damage, folder):
        run = short(folder)
        train(run)
        damage(checkpoint.folder(run) / "model.pt")
        with pytest.raises(UserError, match=r"model\.pt is missing or damaged; delete the folder"):
            checkpoint.load_model(run, 2)

    def test_a_damaged_cache_is_told_and_made_anew(self, damage, folder):
        run = short(folder)
        expected = np.array(batches.loaders(run).table.images)
        (cache,) = paths.CACHE.glob("*.npy")
        damage(cache)
        with pytest.warns(UserWarning, match=r"is damaged \(its checksum does not hold\); it is made anew"):
            np.testing.assert_array_equal(batches.loaders(run).table.images, expected)


class TestDivergence:
    def test_a_term_that_is_no_number_ends_the_run_with_its_name_and_keeps_the_last_epoch(self, whole, monkeypatch):
        run, result = whole
        train(run, stop_after=1)
        kept = (checkpoint.folder(run) / "last.pt").read_bytes()
        sound, steps = DeepAll.update, []

        def diverging(self, *arguments):
            steps.append(arguments)
            return sound(self, *arguments) | ({"loss": float("nan")} if len(steps) == 3 else {})

        with monkeypatch.context() as patch, pytest.raises(UserError, match=r"loss became nan in epoch 2, step 3"):
            patch.setattr(DeepAll, "update", diverging)
            train(run)
        assert (checkpoint.folder(run) / "last.pt").read_bytes() == kept
        train(run)
        assert_same(finished(run), result)

    def test_a_real_divergence_is_named(self, folder):
        with pytest.raises(UserError, match=r"became (nan|inf) in epoch \d"):
            train(short(folder, lr=1e12))

    def test_weights_that_are_no_numbers_are_not_kept(self, whole):
        run, _ = whole
        data_, learner = batches.loaders(run), DeepAll(run, 2)
        checkpoint.resume(run, learner, data_)
        row = {"epoch": 0, **metrics.evaluate(learner, data_), "seconds": 0.0}
        with torch.no_grad():
            learner.h1.bias[0] = float("inf")
        with pytest.raises(UserError, match=r"h1\.bias became inf in epoch 1"):
            checkpoint.checkpoint(run, learner, [row])
        assert not (checkpoint.folder(run) / "last.pt").exists()


class TestTwoAtOnce:
    def test_of_many_one_trains_and_the_others_say_so(self, whole):
        run, result = whole
        batches.loaders(run)
        codes = [code(pid) for pid in [child(lambda: train(run)) for _ in range(5)]]
        assert set(codes) <= {0, TOLD} and codes.count(0) >= 1  # who comes after the end finds it finished
        assert_same(finished(run), result)

    def test_the_sentence_names_the_process_and_its_death_sets_the_run_free(self, whole):
        run, result = whole
        place = checkpoint.folder(run)
        pid = child(lambda: (lock.take(place), time.sleep(60)))
        while not (place / "lock").exists():
            time.sleep(0.01)
        with pytest.raises(UserError, match=f"is being trained by process {pid} on {platform.node()}"):
            train(run)
        os.kill(pid, signal.SIGKILL)
        code(pid)
        train(run)
        assert_same(finished(run), result)

    def of_elsewhere(self, place, **other):
        holder = {"host": "elsewhere", "pid": 1, "began": 0.0, "job": None} | other
        files.write(place / "lock", json.dumps(holder))

    def test_a_lock_of_another_host_that_is_touched_is_respected(self, folder, monkeypatch):
        monkeypatch.setattr(lock, "PATIENCE", 5)
        place = checkpoint.folder(short(folder))
        self.of_elsewhere(place)
        toucher = threading.Timer(0.5, os.utime, [place / "lock"])
        toucher.start()
        with pytest.raises(UserError, match="by process 1 on elsewhere"):
            lock.take(place)

    def test_a_lock_of_another_host_that_nobody_touches_is_taken_over(self, whole, monkeypatch):
        run, result = whole
        monkeypatch.setattr(lock, "PATIENCE", 0.5)
        self.of_elsewhere(checkpoint.folder(run))
        with pytest.warns(UserWarning, match="of another host"):
            train(run)
        assert_same(finished(run), result)

    def test_a_later_process_of_the_same_number_is_not_the_holder(self, folder):
        place = checkpoint.folder(short(folder))
        began = psutil.Process(os.getppid()).create_time() - 1000
        self.of_elsewhere(place, host=platform.node(), pid=os.getppid(), began=began)
        lock.take(place)
        assert json.loads((place / "lock").read_text())["pid"] == os.getpid()

    def test_a_job_that_slurm_begins_again_takes_over_from_itself_at_once(self, folder, monkeypatch):
        monkeypatch.setenv("SLURM_JOB_ID", "77")
        place = checkpoint.folder(short(folder))
        self.of_elsewhere(place, job="77")
        lock.take(place)
        assert json.loads((place / "lock").read_text())["host"] == platform.node()

    def test_of_two_that_find_a_dead_lock_the_slower_looks_again(self, folder):
        file = checkpoint.folder(short(folder)) / "lock"
        self.of_elsewhere(file.parent)
        dead = lock._holder(file)
        assert lock._write_unless_changed(file, dead)
        assert not lock._write_unless_changed(file, dead)

    def test_who_was_taken_over_writes_nothing_any_more(self, folder):
        run = short(folder)
        data_, learner = batches.loaders(run), DeepAll(run, 2)
        checkpoint.resume(run, learner, data_)
        row = {"epoch": 0, **metrics.evaluate(learner, data_), "seconds": 0.0}
        self.of_elsewhere(checkpoint.folder(run))
        before = {file.name for file in checkpoint.folder(run).iterdir()}
        for write in (checkpoint.checkpoint, checkpoint.finish):
            with pytest.raises(UserError, match="was taken over by process 1 on elsewhere"):
                write(run, learner, [row])
        assert {file.name for file in checkpoint.folder(run).iterdir()} == before

    def test_the_holder_touches_its_lock(self, folder, monkeypatch):
        monkeypatch.setattr(lock, "BEAT", 0.05)
        place = checkpoint.folder(short(folder))
        lock.take(place)
        assert lock._is_touched(place / "lock", 5)


class TestNoRoom:
    def test_a_limit_on_the_size_of_files_is_told_and_the_previous_state_stays(self, whole):
        run, result = whole
        train(run, stop_after=1)
        kept = (checkpoint.folder(run) / "last.pt").read_bytes()
        lock.release(checkpoint.folder(run))

        def limited():
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept) // 2, len(kept) // 2))
            train(run)

        assert code(child(limited)) == TOLD
        assert (checkpoint.folder(run) / "before.pt").read_bytes() == kept
        assert not [*checkpoint.folder(run).glob(".*")]
        train(run)
        assert_same(finished(run), result)

    def test_a_full_disk_is_told_and_the_previous_state_stays(self, whole, tmp_path):
        run, result = whole
        disk = tmp_path / "disk"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk], capture_output=True).returncode:
            pytest.skip("mounting a small disk needs root")
        try:
            checkpoint.folder(run).parent.mkdir(parents=True, exist_ok=True)
            checkpoint.folder(run).symlink_to(disk)
            train(run, stop_after=1)
            kept = (disk / "last.pt").read_bytes()
            room = shutil.disk_usage(disk).free
            (disk / "filler").write_bytes(bytes(room - 4096))
            with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
                train(run)
            assert kept in [(disk / name).read_bytes() for name in checkpoint.STATES if (disk / name).exists()]
            assert not [*disk.glob(".*")]
            (disk / "filler").unlink()
            train(run)
            assert_same(finished(run), result)
        finally:
            lock.release(checkpoint.folder(run))
            subprocess.run(["umount", "--lazy", disk], check=True)

    @pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
    def test_a_folder_that_may_not_be_written_is_told(self, folder, monkeypatch):
        with tempfile.TemporaryDirectory() as place:
            os.chmod(place, 0o755)
            shutil.copytree(folder, f"{place}/mine")
            monkeypatch.setattr(paths, "RUNS", Path(place) / "runs")
            paths.RUNS.mkdir(mode=0o555)
            run = short(f"{place}/mine")
            data_ = batches.loaders(run)

            def as_nobody():
                os.setuid(65534)
                checkpoint.resume(run, DeepAll(run, 2), data_)

            assert code(child(as_nobody)) == TOLD
            assert not [*paths.RUNS.iterdir()]


ROOT = Path(__file__).parent.parent
HOSTILE = """
from cirl.study import catalog
from cirl.run.config import Run
from cirl.study.studies import STUDIES

STUDIES["hostile"] = STUDIES["digits"]
catalog.all_runs = lambda name, with_extras: [Run(**{fields!r})]
catalog.notebooks = lambda name, weights: {{}}
include: {snakefile!r}
"""


class Evil:
    def __reduce__(self):
        return os.system, ("touch pwned",)


class TestUntrusted:
    @pytest.fixture
    def evil(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        assert pickle.loads(pickle.dumps(Evil())) == 0 and Path("pwned").exists()  # it would
        Path("pwned").unlink()
        return checkpoint.serialized({"method": Evil(), "best": {}, "history": []})

    def test_a_state_that_would_run_code_is_refused(self, folder, evil):
        run = short(folder)
        train(run, stop_after=1)
        files.write_checked(checkpoint.folder(run) / "last.pt", evil)
        with pytest.raises(UserError, match=r"last\.pt holds more than tensors and numbers"):
            train(run)
        assert not Path("pwned").exists()

    def test_weights_that_would_run_code_are_refused(self, folder, evil):
        run = short(folder)
        result = train(run)
        (checkpoint.folder(run) / "model.pt").write_bytes(evil)
        result.pop("model_sha256")
        files.write(checkpoint.folder(run) / "metrics.json", json.dumps(result))
        with pytest.raises(UserError, match=r"model\.pt holds more than tensors and numbers"):
            checkpoint.load_model(run, 2)
        assert not Path("pwned").exists()

    def test_the_state_of_another_network_is_refused(self, folder):
        run, other = short(folder), short(folder, dim=32)
        for each in (run, other):
            train(each, stop_after=1)
        shutil.copy(checkpoint.folder(other) / "last.pt", checkpoint.folder(run) / "last.pt")
        with pytest.raises(UserError, match="holds the state of another network"):
            train(run)

    @pytest.mark.slow
    def test_nothing_of_a_path_reaches_a_shell(self, folder, tmp_path):
        """A run through Snakemake and papermill on a folder whose name is a program."""
        there = tmp_path / "work"
        hostile = there / 'it\'s "a" $(touch pwned) `touch pwned`\n; touch pwned & {STUDY} %s'
        shutil.copytree(folder, hostile)
        (there / "notebooks").symlink_to(ROOT / "notebooks")
        run = short(hostile, epochs=1)
        (there / "Snakefile").write_text(HOSTILE.format(fields=vars(run), snakefile=str(ROOT / "Snakefile")))
        command = ["snakemake", "--cores", "1", "--config", "study=hostile", "--", f"data/runs/{run.id}/metrics.json"]
        environment = {**os.environ, "CIRL_ROOT": str(there), "PYTHONPATH": str(ROOT)}
        said = subprocess.run(command, cwd=there, env=environment, capture_output=True, text=True)
        assert said.returncode == 0, said.stderr
        assert json.loads((there / "data" / "runs" / run.id / "metrics.json").read_text())["id"] == run.id
        assert not [*there.rglob("pwned")] and not Path("pwned").exists()

    def test_an_image_bomb_is_named_and_not_decoded(self, folder):
        bomb = folder / "ink" / "cat" / "bomb.png"
        Image.new("1", (10_000, 8_000)).save(bomb)
        with pytest.raises(UserError, match=r"bomb\.png cannot be read as an image \(10000 x 8000 pixels"):
            batches.loaders(short(folder))

    def test_a_truncated_image_is_named(self, folder):
        file = folder / "ink" / "cat" / "00.jpg"
        file.write_bytes(file.read_bytes()[:300])
        with pytest.raises(UserError, match=r"00\.jpg cannot be read as an image"):
            batches.loaders(short(folder))
