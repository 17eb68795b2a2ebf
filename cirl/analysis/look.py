"""What a trained model does on its data set: predictions for every held-out image, a map of its representations."""

import copy

import numpy as np
import pandas as pd
import torch
from sklearn.manifold import TSNE
from torch import Tensor

from cirl.data.batches import Loaders, loaders
from cirl.errors import UserError
from cirl.run.trained import BATCH, Trained


def data_of(model: Trained, images: str = "") -> Loaders:
    """The data set that a run was trained on; `images` is the folder to which its images have moved."""
    run = copy.copy(model.run)
    if images:
        object.__setattr__(run, "dataset", f"folder:{images.removeprefix('folder:')}")
    data = loaders(run)
    if data.classes != model.classes:
        raise UserError(
            f"{run.dataset} has the classes {', '.join(data.classes)}; the run knows {', '.join(model.classes)}."
        )
    return data


def tensors(data: Loaders, rows: np.ndarray) -> Tensor:
    """Images of the data set as x in [0, 1]."""
    return torch.from_numpy(np.ascontiguousarray(data.table.images[rows])).permute(0, 3, 1, 2) / 255


def read(model: Trained, data: Loaders) -> tuple[pd.DataFrame, np.ndarray]:
    """Held-out images of the sources and all images of the target: the prediction for each, and r, (n, N).

    The table has a line per image: its row in the data set, domain, unseen (of the target), class, predicted class,
    the probability of that, and whether it is right."""
    rows = np.concatenate([data.parts["source_val"], data.parts["target"]])
    parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    r = torch.cat([model.features(tensors(data, part)) for part in parts])
    with torch.no_grad():
        probability, predicted = model.method.classify(r.to(model.device)).softmax(1).cpu().max(1)
    names = np.array(model.classes)
    table = pd.DataFrame({"row": rows, "domain": np.array(data.run.settings.domains)[data.table.domains[rows]]})
    table["unseen"] = table["domain"] == data.run.target
    table["class"], table["predicted"] = names[data.table.labels[rows]], names[predicted]
    table["probability"], table["right"] = probability.numpy(), table["class"] == table["predicted"]
    return table, r.numpy()


def accuracy(table: pd.DataFrame, model: Trained) -> pd.DataFrame:
    """Accuracy (%) per class and domain, with `all`; the unseen domain is the last."""
    domains = [*model.run.sources, model.run.target]
    wide = table.pivot_table(values="right", index="class", columns="domain", margins=True, margins_name="all")
    return 100 * wide.astype(float).reindex(index=[*model.classes, "all"], columns=[*domains, "all"])


def confusion(table: pd.DataFrame, model: Trained) -> pd.DataFrame:
    """How many images of each class (row) were taken for each class (column)."""
    counts = pd.crosstab(table["class"], table["predicted"])
    return counts.reindex(index=model.classes, columns=model.classes, fill_value=0)


def mistakes(table: pd.DataFrame, count: int) -> pd.DataFrame:
    """The most confident mistakes, most confident first."""
    return table[~table["right"]].sort_values("probability", ascending=False).head(count)


def first_of_each(table: pd.DataFrame, classes: list[str]) -> pd.DataFrame:
    """The first image of each class, in the order of the data set: a choice made without knowing the prediction."""
    first = table[table["class"].isin(classes)].sort_values("row").groupby("class").head(1)
    return first.set_index("class").loc[[name for name in classes if name in set(first["class"])]].reset_index()


def plane(r: np.ndarray, table: pd.DataFrame, most: int = 1000, seed: int = 0) -> pd.DataFrame:
    """t-SNE of representations: rows of the table, equally many of each domain, with coordinates x, y."""
    each = max(1, most // table["domain"].nunique())
    kept = table.sample(frac=1, random_state=seed).groupby("domain").head(each).index
    if len(kept) < 4:
        raise UserError(f"t-SNE needs at least four images; there are {len(kept)}.")
    maker = TSNE(perplexity=min(30.0, (len(kept) - 1) / 3), init="pca", random_state=seed)
    x, y = maker.fit_transform(r[table.index.get_indexer(kept)]).T
    return table.loc[kept].assign(x=x, y=y)
