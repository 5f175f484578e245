"""The strict build, on a small repository made here: one chapter that works, others that fail on purpose."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("papermill")
pytest.importorskip("plotly")

from sparda import chapter_build  # noqa: E402
from sparda import reproduce as build  # noqa: E402
from sparda.figures import catalogue, gallery  # noqa: E402
from sparda.figures.catalogue import BuildError  # noqa: E402
from sparda.remeasure_run import Outcome  # noqa: E402

PARAMETERS = 'n_tokens: int = 64\nlink_gb_per_s: float = 25.0\nprofile: str = "smoke"'
FIGURE = """
import pandas as pd, plotly.graph_objects as go
from sparda.figures import publish, style
table = pd.DataFrame({"x": [1, 2], "y": [n_tokens, link_gb_per_s]})
fig = go.Figure(go.Scatter(x=table.x, y=table.y), layout={"title": {"text": "Tiny"}})
publish("tiny", style.stamp(fig, "modelled", profile), table)
"""
GOOD = """
chapters:
  00_tiny.ipynb: {cpu: {n_tokens: 128}}
tiny: {notebook: 00_tiny.ipynb, parameters: {link_gb_per_s: 50.0}, status: modelled, caption: C., alt: A.}
"""


def write_notebook(root, name, *cells):
    code = [nbformat.v4.new_code_cell(cell.strip()) for cell in cells]
    head = nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    title = nbformat.v4.new_markdown_cell(f"# The chapter {name}")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = nbformat.v4.new_notebook(cells=[title, head, *code], metadata=kernel)
    nbformat.write(notebook, root / "notebooks" / name)


def write_catalogue(root, text):
    (root / "figures" / "figures.yml").write_text(text, encoding="utf-8")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    for room in ("notebooks", "figures", "sparda", "kernels", "build/figures"):
        (tmp_path / room).mkdir(parents=True)
    write_notebook(tmp_path, "00_tiny.ipynb", FIGURE)
    write_catalogue(tmp_path, GOOD)
    monkeypatch.setattr(gallery, "find_browser", lambda: None)
    return tmp_path


def run(root, *chapters, **options):
    return build.reproduce(list(chapters), options.pop("profile", "cpu"), root=root, **options)


def fake_execute(monkeypatch, action=None):
    """Replace the run of the notebook by writing its files at once, or by ``action(staging)``."""
    runs = []

    def execute(chapter, setup, staging, pace):
        runs.append(chapter.name)
        nbformat.write(nbformat.v4.new_notebook(), staging / chapter.notebook)
        if action:
            action(staging)
        drawn = {"data": [], "layout": {"meta": {"status": "modelled", "stamp": "modelled"}}}
        (staging / "tiny.json").write_text(json.dumps(drawn))
        (staging / "tiny.csv").write_text("x\n1\n")

    monkeypatch.setattr(chapter_build, "_execute", execute)
    return runs


def test_a_chapter_becomes_figures_provenance_and_a_gallery(repository, capsys):
    write_notebook(repository, "01_bad.ipynb", "# why\nraise ValueError('the sum is off')")
    write_catalogue(repository, GOOD.replace("tiny:", "  01_bad.ipynb:\ntiny:", 1))
    assert run(repository) == 1
    figures = repository / "build" / "figures"
    assert (figures / "tiny.csv").read_text() == "x,y\n1,128\n2,50\n"
    record = json.loads((figures / "tiny.provenance.json").read_text())
    assert record["parameters"] == {"profile": "cpu", "n_tokens": 128, "link_gb_per_s": 50.0}
    assert record["command"] == "sparda reproduce 00_tiny --profile cpu"
    assert {"date", "commit", "device", "versions", "inputs", "status", "name", "notebook"} <= set(record)
    executed = figures / "chapters" / "00_tiny.ipynb"
    assert executed.stat().st_size < 200_000
    assert "widgets" not in json.loads(executed.read_text())["metadata"]
    said = capsys.readouterr().err
    assert "01_bad: FAILED: cell 3 (`raise ValueError('the sum is off')`) stopped with ValueError" in said
    assert "the sum is off" in (figures / "failed" / "01_bad.ipynb").read_text()
    page = (figures / "index.html").read_text()
    assert "The chapter 00_tiny.ipynb" in page
    assert "https://" not in page
    assert (figures / "plotly.min.js").is_file()
    assert not list((figures / ".state").glob("staging-*"))


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (("n_tokens: 128", "n_token: 128"), "no parameter 'n_token'; did you mean n_tokens"),
        (("n_tokens: 128", "n_tokens: 128.0"), "n_tokens: int, but figures.yml gives 128.0 (float)"),
        (("link_gb_per_s: 50.0", "link_gb_per_s: 50"), "write it as float"),
        (("link_gb_per_s: 50.0", "n_tokens: 3"), "give n_tokens one value"),
        (("{cpu:", "{cpus:"), "unknown profile 'cpus'; did you mean cpu"),
        (("{cpu:", "{seconds: 20, cpu:"), "write its seconds as seconds: {cpu: 20}"),
        (("{cpu:", "{seconds: {fast: 20}, cpu:"), "unknown profile 'fast'"),
        (("alt: A.", "alt: A., colour: red"), "unknown key 'colour'"),
        ((", alt: A.", ""), "alt is missing"),
        (("status: modelled", "status: guessed"), "not one of measured, modelled, simulated"),
        (("notebook: 00_tiny", "notebook: 00_tinny"), "did you mean 00_tiny.ipynb"),
        (("  00_tiny", "  09_none.ipynb:\n  00_tiny"), "notebooks/09_none.ipynb does not exist"),
        (("tiny: {", "Tiny!: {"), "small letters"),
        (("status:", "inputs: [data/none.csv], status:"), "input data/none.csv does not exist"),
        (("\ntiny: {", "\ntiny: {}\ntiny: {"), "stands there twice"),
        (("chapters:", "chapter:"), "key `chapters`"),
        (("tiny: {", "tiny: [{"), "not valid YAML"),
    ],
)
def test_a_wrong_entry_stops_the_build_before_anything_runs(repository, monkeypatch, edit, complaint):
    runs = fake_execute(monkeypatch)
    assert edit[0] in GOOD
    write_catalogue(repository, GOOD.replace(*edit))
    with pytest.raises(BuildError) as stopped:
        run(repository)
    assert complaint in str(stopped.value)
    assert "\n" not in str(stopped.value)
    assert runs == []


@pytest.mark.parametrize("name", ["00", "00_tiny", "00_tiny.ipynb", "tiny"])
def test_a_chapter_answers_to_its_number_its_name_and_its_figures(repository, name):
    (chapter,) = catalogue.choose(catalogue.read(repository), [name])
    assert chapter.name == "00_tiny"


def test_a_first_build_says_how_long_it_takes_and_a_change_of_that_runs_nothing_anew(
    repository, monkeypatch, capsys
):
    runs = fake_execute(monkeypatch)
    write_catalogue(repository, GOOD.replace("{cpu:", "{seconds: {cpu: 42}, cpu:"))
    assert run(repository) == 0
    assert "[1/1] 00_tiny, about 42 s left" in capsys.readouterr().out
    write_catalogue(repository, GOOD)
    assert run(repository) == 0
    assert runs == ["00_tiny"]


def test_an_output_folder_may_be_relative(repository, monkeypatch):
    monkeypatch.chdir(repository)
    assert run(repository, output="elsewhere") == 0
    assert (repository / "elsewhere" / "tiny.json").is_file()


def test_an_unknown_step_is_refused_with_the_nearest_name(gpu):
    with pytest.raises(BuildError, match="did you mean longer"):
        run(gpu.root, "longr", profile="gpu")


def test_an_unknown_chapter_is_refused_with_the_nearest_name(repository):
    with pytest.raises(BuildError, match="did you mean 00_tiny"):
        run(repository, "00_tinny")


def test_a_chapter_that_there_is_not_is_told_the_chapters_and_no_other_names(root):
    known = catalogue.read(root)
    with pytest.raises(BuildError) as told:
        catalogue.choose(known, ["09"], ["decode"])
    assert str(told.value).endswith(f"; known: {', '.join(known)}")
    with pytest.raises(BuildError, match="did you mean decode"):
        catalogue.choose(known, ["decod"], ["decode"])


def test_the_gpu_profile_is_refused_without_a_gpu(repository, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(BuildError, match="use --profile cpu"):
        run(repository, profile="gpu")


def test_an_executed_chapter_is_a_page_too_that_needs_no_jupyter_and_no_network(repository, broken_links):
    write_notebook(repository, "01_more.ipynb", "x = 1")
    write_catalogue(repository, GOOD.replace("tiny:", "  01_more.ipynb:\ntiny:", 1))
    (repository / "notebooks" / "glossary.md").write_text(
        "# Terms\n\n[tiny](00_tiny.ipynb), [data](../data/a.md)"
    )
    book = json.loads((repository / "notebooks" / "00_tiny.ipynb").read_text())
    linked = "See [terms](glossary.md#a), [next](01_more.ipynb), [elsewhere](../data/a.md) and `a < b`."
    book["cells"].insert(1, nbformat.v4.new_markdown_cell(linked))
    (repository / "notebooks" / "00_tiny.ipynb").write_text(json.dumps(book))
    assert run(repository) == 0
    chapters = repository / "build" / "figures" / "chapters"
    assert broken_links(chapters) == []
    page = (chapters / "00_tiny.html").read_text()
    targets = re.findall(r'(?:href|src)="([^"#]+)', page)
    assert {"glossary.html", "01_more.html", "../index.html", "../plotly.min.js"} == set(targets)
    assert all((chapters / target).is_file() for target in targets)
    assert "https://" not in re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
    assert page.count('class="plot"') == 1
    assert "a &lt; b" in page
    assert 'href="chapters/00_tiny.html">executed chapter' in page_of(repository)
    assert 'href="00_tiny.html"' in (chapters / "glossary.html").read_text()


def test_an_executed_chapter_is_a_whole_notebook_without_the_times_of_its_cells(repository):
    assert run(repository) == 0
    path = repository / "build" / "figures" / "chapters" / "00_tiny.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any({"papermill", "execution"} & set(cell.metadata) for cell in notebook.cells)
    assert len(path.read_text().splitlines()) == 1


def test_what_is_up_to_date_is_skipped_until_something_changes(repository, monkeypatch):
    runs = fake_execute(monkeypatch)
    changes = [
        lambda: None,
        lambda: (repository / "sparda" / "new.py").write_text("x = 1"),
        lambda: (repository / "kernels" / "new.py").write_text("x = 1"),
        lambda: write_notebook(repository, "00_tiny.ipynb", FIGURE, "x = 1"),
        lambda: write_catalogue(repository, GOOD.replace("caption: C.", "caption: D.")),
        lambda: (repository / "build" / "figures" / "tiny.csv").write_text("edited"),
        lambda: (repository / "build" / "figures" / "tiny.json").unlink(),
        lambda: monkeypatch.setattr(build.provenance, "versions", lambda: {"torch": "0"}),
    ]
    for count, change in enumerate(changes, start=1):
        change()
        assert run(repository) == 0
        assert len(runs) == count
        assert run(repository) == 0
        assert len(runs) == count
    assert run(repository, force=True) == 0
    assert len(runs) == len(changes) + 1


def test_a_changed_input_means_a_rebuild(repository, monkeypatch):
    runs = fake_execute(monkeypatch)
    (repository / "input.csv").write_text("1")
    write_catalogue(repository, GOOD.replace("status:", "inputs: [input.csv], status:"))
    for text, count in (("1", 1), ("1", 1), ("2", 2)):
        (repository / "input.csv").write_text(text)
        assert run(repository) == 0
        assert len(runs) == count


@pytest.mark.parametrize(("profile", "folder"), [("smoke", "smoke"), ("cpu", "figures")])
def test_a_build_leaves_the_committed_figures_alone(repository, monkeypatch, profile, folder):
    fake_execute(monkeypatch)
    assert run(repository, profile=profile) == 0
    assert sorted(path.name for path in (repository / "figures").iterdir()) == ["figures.yml"]
    assert (repository / "build" / folder / "tiny.json").is_file()


def in_repository(root) -> dict[str, str]:
    """What is in figures/, by the path there."""
    folder = root / "figures"
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.*[!l]")}


def test_what_was_built_is_published_by_its_own_option_alone(repository, monkeypatch, capsys):
    runs = fake_execute(monkeypatch)
    built = repository / "build" / "figures"
    (built / "published").mkdir()
    (built / "published" / "table1.json").write_text("{}")
    assert run(repository) == 0
    assert in_repository(repository) == {}
    (built / "tiny.png").write_text("drawn from another figure")
    assert run(repository, publish=True) == 0
    assert runs == ["00_tiny"]  # what a maintainer has looked at is what is published
    names = ["pictures.sha256", "published/table1.json", "tiny.csv", "tiny.json", "tiny.provenance.json"]
    assert sorted(in_repository(repository)) == names
    assert in_repository(repository)["tiny.json"] == (built / "tiny.json").read_text()
    key = build.provenance.sha256(built / "tiny.json")
    (built / "pictures.sha256").write_text(f"{key}  tiny.json\n")
    assert run(repository, publish=True) == 0
    assert in_repository(repository)["tiny.png"] == "drawn from another figure"
    assert in_repository(repository)["pictures.sha256"] == f"{key}  tiny.json\n"
    assert "published in figures/: tiny\n" in capsys.readouterr().out


def test_a_build_with_a_failure_and_a_smoke_build_are_not_published(repository, monkeypatch):
    fake_execute(monkeypatch, lambda folder: (_ for _ in ()).throw(RuntimeError("the kernel died")))
    assert run(repository, publish=True) == 1
    with pytest.raises(BuildError, match="use --profile cpu or gpu"):
        run(repository, publish=True, profile="smoke")
    assert in_repository(repository) == {}


def test_the_gallery_shows_what_is_published_until_it_is_built(repository, monkeypatch):
    fake_execute(monkeypatch)
    assert run(repository, publish=True) == 0
    for path in (repository / "build" / "figures").glob("tiny.*"):
        path.unlink()
    said = gallery.write(repository, repository / "build" / "figures").read_text()
    assert 'id="plot-tiny"' in said
    assert 'href="../../figures/tiny.csv"' in said
    assert run(repository) == 0
    assert 'href="tiny.csv"' in page_of(repository)


def page_of(root) -> str:
    return (root / "build" / "figures" / "index.html").read_text()


def test_a_repository_is_as_clean_after_a_build_as_before(repository, monkeypatch, root):
    shutil.copy(root / ".gitignore", repository)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    fake_execute(monkeypatch)
    assert run(repository) == 0
    assert subprocess.run([*git, "status", "--porcelain"], capture_output=True, check=True).stdout == b""
    assert run(repository, publish=True) == 0
    assert b"figures/tiny.json" in subprocess.run(
        [*git, "status", "--porcelain", "-uall"], capture_output=True, check=True
    ).stdout  # fmt: skip


@pytest.mark.parametrize(
    ("action", "complaint"),
    [
        (
            lambda folder: (folder / "extra.json").write_text("{}"),
            "extra, which figures.yml does not declare",
        ),
        (lambda folder: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")), "the disk is full"),
        (lambda folder: (_ for _ in ()).throw(RuntimeError("the kernel died")), "the kernel died"),
    ],
)
def test_a_failed_chapter_leaves_the_earlier_results_whole(
    repository, monkeypatch, capsys, action, complaint
):
    fake_execute(monkeypatch)
    assert run(repository) == 0
    results = list((repository / "build" / "figures").glob("tiny.*"))
    before = {path: path.read_bytes() for path in results}
    fake_execute(monkeypatch, action)
    assert run(repository, force=True) == 1
    said = capsys.readouterr().err
    assert complaint in said
    assert "untouched" in said
    assert {path: path.read_bytes() for path in results} == before
    assert not list((repository / "build" / "figures" / ".state").glob("staging-*"))


def test_a_figure_that_is_never_published_fails_its_chapter(repository, monkeypatch, capsys):
    fake_execute(monkeypatch)
    more = "second: {notebook: 00_tiny.ipynb, status: modelled, caption: C., alt: A.}\n"
    write_catalogue(repository, GOOD + more)
    assert run(repository) == 1
    assert "never published second" in capsys.readouterr().err


def test_a_stamp_that_differs_from_the_declared_status_fails_its_chapter(repository, monkeypatch, capsys):
    fake_execute(monkeypatch)
    write_catalogue(repository, GOOD.replace("status: modelled", "status: measured"))
    assert run(repository) == 1
    assert "stamped modelled, but figures.yml says measured" in capsys.readouterr().err


def test_a_chapter_that_has_grown_too_large_is_refused(repository, monkeypatch, capsys):
    fake_execute(monkeypatch)
    monkeypatch.setattr("sparda.chapter_build.MOST_BYTES", 1)
    assert run(repository) == 1
    assert "1 at most; show less" in capsys.readouterr().err


def test_a_disk_that_fills_inside_a_cell_is_named(repository, capsys):
    write_notebook(repository, "00_tiny.ipynb", "raise OSError(28, 'No space left on device')")
    assert run(repository) == 1
    assert "the disk is full: free some space" in capsys.readouterr().err


def test_a_browser_that_breaks_costs_only_the_pictures(tmp_path, capsys, monkeypatch):
    pytest.importorskip("kaleido")
    (tmp_path / "tiny.json").write_text(json.dumps({"data": [], "layout": {}}))
    monkeypatch.setattr(gallery, "find_browser", lambda: "/bin/false")
    monkeypatch.setattr(gallery, "_pictures", broken_pictures)
    gallery.draw_pngs(tmp_path, ["tiny"])
    assert "no PNG drawn: /bin/false failed (it crashed)" in capsys.readouterr().out


async def broken_pictures(figures, browser):
    raise RuntimeError("it crashed")


def test_a_picture_is_drawn_again_when_its_figure_has_changed_and_only_then(tmp_path, monkeypatch):
    pytest.importorskip("kaleido")
    drawn = []

    async def pictures(figures, browser):
        drawn.append(sorted(figures))
        return dict.fromkeys(figures, b"PNG")

    monkeypatch.setattr(gallery, "_pictures", pictures)
    (tmp_path / "published").mkdir()
    names = ["tiny", "published/other"]
    for name in names:
        (tmp_path / f"{name}.json").write_text(json.dumps({"data": [], "layout": {}}))
    monkeypatch.setattr(gallery, "find_browser", lambda: None)
    gallery.draw_pngs(tmp_path, names)
    monkeypatch.setattr(gallery, "find_browser", lambda: "browser")
    for _ in range(2):  # what a machine without a browser left is made up for, once
        gallery.draw_pngs(tmp_path, names)
        assert drawn == [["published/other", "tiny"]]
    (tmp_path / "tiny.json").write_text(json.dumps({"data": [{"y": [1]}], "layout": {}}))
    gallery.draw_pngs(tmp_path, names)
    assert drawn[1:] == [["tiny"]]
    (tmp_path / "tiny.png").unlink()
    gallery.draw_pngs(tmp_path, names)
    assert drawn[2:] == [["tiny"]]


@pytest.mark.browser
def test_a_picture_is_drawn_where_a_browser_is_found(tmp_path):
    pytest.importorskip("kaleido")
    (tmp_path / "tiny.json").write_text(json.dumps({"data": [{"y": [1, 2]}], "layout": {}}))
    gallery.draw_pngs(tmp_path, ["tiny", "not_built"])
    assert (tmp_path / "tiny.png").read_bytes()[:4] == b"\x89PNG"


def test_text_from_the_catalogue_cannot_break_the_page(repository, monkeypatch):
    fake_execute(monkeypatch)
    write_catalogue(repository, GOOD.replace("caption: C.", "caption: a < b </script>"))
    assert run(repository) == 0
    assert "a &lt; b &lt;/script&gt;" in (repository / "build" / "figures" / "index.html").read_text()


def test_ctrl_c_stops_with_one_sentence_and_leaves_the_earlier_results_whole(repository):
    started = repository / "started"
    write_notebook(
        repository, "00_tiny.ipynb", f"import time\nopen({str(started)!r}, 'w').close()\ntime.sleep(60)"
    )
    (repository / "build" / "figures" / "tiny.json").write_text("earlier")
    code = (
        "import pathlib, sys, sparda.cli, sparda.provenance as p; "
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a job may ignore it
        "p.ROOT = pathlib.Path(sys.argv[1]); sys.exit(sparda.cli.main(['reproduce']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(repository)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not started.exists() and time.monotonic() < until:
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert said.strip() == "sparda: stopped by Ctrl-C; what was built before is untouched"
    assert (repository / "build" / "figures" / "tiny.json").read_text() == "earlier"
    assert not list((repository / "build" / "figures" / ".state").glob("staging-*"))


STEPS = """
budget_s: 100
steps:
  decode: {run: stub, writes: [decode.csv], reads: [sparda], seconds: 40, gpu_gib: 24, host_gib: 1}
  prefill: {run: stub, writes: [prefill.csv], reads: [sparda], seconds: 70, gpu_gib: 24, host_gib: 1}
  longer: {run: stub, writes: [l.csv], reads: [sparda], seconds: 900, gpu_gib: 9, host_gib: 1, by_name: true}
"""


@pytest.fixture
def gpu(repository, monkeypatch):
    """A machine that has a GPU, as far as the build can tell; steps run as ``gpu.outcomes`` says."""
    (repository / "figures" / "measurements.yml").write_text(STEPS)
    (repository / "input").mkdir()
    (repository / "input" / "decode.csv").write_text("1")
    write_catalogue(repository, GOOD.replace("status:", "inputs: [input/decode.csv], status:"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("sparda.measure.bench.device_folder", lambda: "fake-gpu")
    monkeypatch.setattr(build.provenance, "device", lambda: "Fake GPU")
    monkeypatch.setattr(build.remeasure, "too_small", lambda step: "")
    state = SimpleNamespace(root=repository, ran=[], outcomes={}, commits=set())

    def run_step(step, place, *, limit_s):
        state.ran.append((step.name, limit_s))
        state.commits.add(os.environ["SPARDA_COMMIT"])
        outcome = state.outcomes.get(step.name, Outcome(10.0, 3))
        if isinstance(outcome, BaseException):
            raise outcome
        if not outcome.problem:
            (place.root / "input" / step.writes[0]).write_text(str(len(state.ran)))
            note = {"digest": build.remeasure.digest(step, place), "proof": {}}
            place.state.mkdir(parents=True, exist_ok=True)
            place.note(step).write_text(json.dumps(note))
        return outcome

    monkeypatch.setattr(build.remeasure_run, "run", run_step)
    return state


def page(gpu):
    return (gpu.root / "build" / "figures" / "index.html").read_text()


def test_the_gpu_build_measures_first_and_then_runs_what_depends_on_it(gpu, monkeypatch):
    runs = fake_execute(monkeypatch)
    assert run(gpu.root, profile="gpu") == 0
    assert [name for name, _ in gpu.ran] == ["decode", "prefill"]
    assert runs == ["00_tiny"]
    assert run(gpu.root, profile="gpu") == 0
    assert len(gpu.ran) == 2
    assert len(runs) == 1
    assert len(gpu.commits) == 1
    assert 'class="note">' not in page(gpu).replace('class="note">This browser', "")


def test_a_step_that_fails_keeps_the_figure_and_the_page_says_so(gpu, monkeypatch, capsys):
    fake_execute(monkeypatch)
    gpu.outcomes["decode"] = Outcome(5.0, 0, "it ended with status 1: the driver is gone")
    assert run(gpu.root, profile="gpu") == 1
    sentence = "decode was not measured anew"
    assert sentence in page(gpu)
    assert "the driver is gone. What was measured before is shown." in page(gpu)
    assert "decode: not measured: it ended with status 1" in capsys.readouterr().err
    del gpu.outcomes["decode"]
    assert run(gpu.root, profile="gpu") == 0
    assert sentence not in page(gpu)


def test_a_gpu_that_is_too_small_keeps_the_committed_measurement_and_is_no_failure(gpu, monkeypatch):
    fake_execute(monkeypatch)
    monkeypatch.setattr(build.remeasure, "too_small", lambda step: "it needs 24 GiB of GPU memory")
    assert run(gpu.root, profile="gpu") == 0
    assert gpu.ran == []
    assert "this machine is too small: it needs 24 GiB of GPU memory" in page(gpu)
    assert 'id="plot-tiny"' in page(gpu)


def test_steps_stop_at_the_budget_and_the_next_run_goes_on(gpu, monkeypatch, capsys):
    fake_execute(monkeypatch)
    gpu.outcomes["decode"] = Outcome(50.0, 3)
    assert run(gpu.root, profile="gpu") == 0
    assert gpu.ran == [("decode", 100.0)]
    assert "prefill: not measured: it is left for the next run of the same command" in capsys.readouterr().err
    assert run(gpu.root, profile="gpu") == 0
    assert [name for name, _ in gpu.ran] == ["decode", "prefill"]


def test_a_step_asked_for_by_name_has_its_own_limit_and_runs_no_chapter(gpu, monkeypatch):
    runs = fake_execute(monkeypatch)
    assert run(gpu.root, "longer", profile="gpu") == 0
    assert gpu.ran == [("longer", 1860)]
    assert runs == []
    with pytest.raises(BuildError, match="longer is a measurement on a GPU; build it with --profile gpu"):
        run(gpu.root, "longer")


def test_a_build_that_is_stopped_while_it_measures_says_what_waits(gpu, monkeypatch):
    runs = fake_execute(monkeypatch)
    gpu.outcomes["prefill"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(gpu.root, profile="gpu")
    said = page(gpu)
    assert "has not come to its end" in said
    assert "Waiting: prefill, 00_tiny." in said
    assert "`sparda reproduce --profile gpu` goes on where it stopped" in said
    del gpu.outcomes["prefill"]
    assert run(gpu.root, profile="gpu") == 0
    assert [name for name, _ in gpu.ran] == ["decode", "prefill", "prefill"]
    assert runs == ["00_tiny"]
    assert "has not come to its end" not in page(gpu)


def test_a_chapter_that_fails_keeps_its_last_figures_and_the_page_says_why(repository, monkeypatch):
    fake_execute(monkeypatch)
    assert run(repository) == 0
    fake_execute(monkeypatch, lambda folder: (_ for _ in ()).throw(RuntimeError("the sum < 0")))
    assert run(repository, force=True) == 1
    said = (repository / "build" / "figures" / "index.html").read_text()
    assert "The last attempt to build this chapter failed" in said
    assert "the sum &lt; 0" in said
    assert 'id="plot-tiny"' in said
    fake_execute(monkeypatch)
    assert run(repository) == 0  # the results of before still stand
    assert "failed" not in (repository / "build" / "figures" / "index.html").read_text()


def test_what_a_killed_build_left_behind_is_removed_and_a_running_one_is_not(repository, monkeypatch):
    fake_execute(monkeypatch)
    state = repository / "build" / "figures" / ".state"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getppid()):
        (state / f"staging-{pid}-x").mkdir(parents=True)
    assert run(repository) == 0
    assert [path.name for path in state.glob("staging-*")] == [f"staging-{os.getppid()}-x"]


def test_a_damaged_figure_or_report_costs_a_sentence_and_not_the_page(repository, monkeypatch):
    fake_execute(monkeypatch)
    assert run(repository) == 0
    (repository / "build" / "figures" / "tiny.json").write_text('{"data": [')
    (repository / "build" / "figures" / ".state" / "report.json").write_text("{")
    said = gallery.write(repository, repository / "build" / "figures").read_text()
    assert "tiny.json is damaged; `make reproduce CHAPTERS=00` writes it again" in said


def build_that_runs(repository) -> subprocess.Popen:
    """A build in a process of its own, in the middle of its only chapter."""
    started = repository / "started"
    write_notebook(
        repository, "00_tiny.ipynb", f"import time\nopen({str(started)!r}, 'w').close()\ntime.sleep(60)"
    )
    code = (
        "import pathlib, sys, sparda.cli, sparda.provenance as p; "
        "p.ROOT = pathlib.Path(sys.argv[1]); sys.exit(sparda.cli.main(['reproduce']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(repository)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 60
    while not started.exists() and time.monotonic() < until:
        time.sleep(0.1)
    return child


def test_a_polite_kill_ends_the_build_as_ctrl_c_does(repository):
    (repository / "build" / "figures" / "tiny.json").write_text("earlier")
    child = build_that_runs(repository)
    child.terminate()
    assert child.wait(timeout=60) == 130
    assert (repository / "build" / "figures" / "tiny.json").read_text() == "earlier"
    assert not list((repository / "build" / "figures" / ".state").glob("staging-*"))


def test_a_build_that_is_killed_leaves_a_page_that_says_so_and_the_next_one_cleans_up(
    repository, monkeypatch
):
    fake_execute(monkeypatch)
    assert run(repository) == 0
    child = build_that_runs(repository)
    child.kill()
    child.wait()
    said = (repository / "build" / "figures" / "index.html").read_text()
    assert "has not come to its end" in said
    assert "Waiting: 00_tiny." in said
    assert 'id="plot-tiny"' in said
    state = repository / "build" / "figures" / ".state"
    assert list(state.glob("staging-*"))
    assert run(repository) == 0
    assert not list(state.glob("staging-*"))
    assert "has not come to its end" not in (repository / "build" / "figures" / "index.html").read_text()
