"""The four benchmarks: what they are, their terms of use, their sources and their numbers of images; those of tiny."""

from dataclasses import dataclass, field

PER_CLASS = 86  # images of tiny per class and domain, of which VAL are for validation
VAL = 16
DRIVE = "https://drive.google.com/uc?id="
DOMAINNET = "http://csr.bu.edu/ftp/visda/2019/multi-source/"


@dataclass(frozen=True)
class Archive:
    """A file that is fetched into `data/raw` and unpacked; mirrors are tried in order."""

    name: str
    mirrors: tuple[str, ...]
    sha256: str | None = None  # if it is published


@dataclass(frozen=True)
class Dataset:
    """A benchmark as `01_data` describes, fetches and checks it."""

    title: str
    what: str
    size: str
    terms: str
    source: str
    classes: int
    counts: dict[str, tuple[int, int] | int]  # domain -> (train, val), or all images if the split is ours
    archives: tuple[Archive, ...]
    sums: dict[str, str] = field(default_factory=dict)  # domain -> `fetch.content_sum`, if it is known


DATASETS = {
    "digits_dg": Dataset(
        title="Digits-DG",
        what="Digits in four styles: MNIST, MNIST-M (digits on photographs), SVHN (house numbers), SYN (rendered).",
        size="24,000 images of 32 x 32, 600 per class and domain",
        terms="compiled from MNIST (CC BY-SA 3.0), MNIST-M, SVHN (non-commercial use only) and SYN; research use",
        source="Zhou et al., Deep Domain-Adversarial Image Generation for Domain Generalisation, AAAI 2020",
        classes=10,
        counts={domain: (4800, 1200) for domain in ("mnist", "mnist_m", "svhn", "syn")},
        archives=(Archive("digits_dg.zip", (DRIVE + "15V7EsHfCcfbKgsDmzQKj_DfXt_XYp_P7",)),),
    ),
    "pacs": Dataset(
        title="PACS",
        what="Seven kinds of object as art paintings, cartoons, photographs and sketches. All of the official lists: "
        "sketch/dog/n02103406_4068-1.png, which another toolkit leaves out as erroneous, stays in.",
        size="9,991 images of 227 x 227, some 190 MB",
        terms="no licence is stated; its authors offer it for research",
        source="Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017; domaingeneralization.github.io",
        classes=7,
        counts={"art_painting": (1840, 208), "cartoon": (2107, 237), "photo": (1499, 171), "sketch": (3531, 398)},
        archives=(
            Archive(
                "pacs.zip",
                (
                    DRIVE + "1m4X4fROCCXMO0lRLrr6Zz9Vb3974NWhE",  # with the official lists
                    DRIVE + "1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd",
                    "https://wjdcloud.blob.core.windows.net/dataset/PACS.zip",
                ),
            ),
        ),
        sums={
            "art_painting": "b836162add5ffe30",
            "cartoon": "488d0771e9fdf7f0",
            "photo": "39883ab4fb497793",
            "sketch": "b8da03ff4b910041",
        },
    ),
    "officehome": Dataset(
        title="Office-Home",
        what="65 things of office and home: art, clipart, product pictures, photographs.",
        size="15,588 images, some 1.1 GB",
        terms="for non-commercial research and education (the terms of its page)",
        source="Venkateswara et al., Deep Hashing Network for Unsupervised Domain Adaptation, CVPR 2017; "
        "www.hemanthdv.org/officeHomeDataset.html",
        classes=65,
        counts={"art": 2427, "clipart": 4365, "product": 4439, "real_world": 4357},
        archives=(
            Archive(
                "officehome.zip",
                (
                    DRIVE + "1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC",
                    DRIVE + "0B81rNlvomiwed0V1YUxQdC1uOTg&resourcekey=0-2SNWq0CDAuWOBRRBL7ZZsw",
                    DRIVE
                    + "1gkbf_KaxoBws-GWT3XIPZ7BnkqbAxIFa",  # another toolkit's 90/10 split, as train and val folders
                ),
            ),
        ),
    ),
    "minidomainnet": Dataset(
        title="mini-DomainNet",
        what="126 classes and four domains of DomainNet: clipart, painting, real, sketch.",
        size="about 140,000 images, chosen by lists from some 13 GB of DomainNet",
        terms="DomainNet's fair use notice: copyrighted material collected for non-commercial research",
        source="Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019 (ai.bu.edu/M3SDA); "
        "lists: Zhou et al., Domain Adaptive Ensemble Learning, TIP 2021",
        classes=126,
        counts={},  # as many as the lists name
        archives=(
            Archive("splits_mini.zip", (DRIVE + "15rrLDCrzyi6ZY-1vJar3u7plgLe4COL7",)),
            Archive("clipart.zip", (DOMAINNET + "groundtruth/clipart.zip", DOMAINNET + "clipart.zip")),
            Archive("painting.zip", (DOMAINNET + "groundtruth/painting.zip", DOMAINNET + "painting.zip")),
            Archive("real.zip", (DOMAINNET + "real.zip",)),
            Archive("sketch.zip", (DOMAINNET + "sketch.zip",)),
        ),
    ),
}

NOTES = {  # data digest -> what is shown with every number from these data
    "aa7e47e804f9c2ce": "Digits-DG rebuilt by its protocol: other random draws than the paper's, SVHN cropped from the "
    "photographs, and SYN re-made, not the original files; single numbers can differ by a few points for that alone.",
}
