"""Train a small detector: a class and a box for each cell of a grid, as FCOS does on one scale.

    python examples/train_detection_boxes.py                             # makes images with boxes
    python examples/train_detection_boxes.py --data instances_train.json # COCO's annotations

Boxes follow every crop and flip of their image; what is left of them is clipped, what is out of
sight is gone. So an image has any number of boxes: batches hold a list of them.
Source: Tian et al., "FCOS: Fully Convolutional One-Stage Object Detection", 2019.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

import skimage.data
import torch
from PIL import Image
from torch import nn
from torchvision.ops import box_iou, generalized_box_iou_loss, sigmoid_focal_loss

import packio

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])  # mean, standard deviation
OBJECTS = {"cat": "chelsea", "cup": "coffee", "rocket": "rocket"}  # class → its photograph
STRIDE = 8  # pixels of a cell


def make_data(count: int) -> Iterator[dict[str, object]]:
    """Photographs of textures with one to three other photographs on them."""
    draw = random.Random(0)
    photos = [Image.fromarray(getattr(skimage.data, name)()) for name in OBJECTS.values()]
    grounds = [Image.fromarray(skimage.data.grass()), Image.fromarray(skimage.data.brick())]
    for _ in range(count):
        image, boxes, labels = draw.choice(grounds).convert("RGB").resize((160, 120)), [], []
        for left in draw.sample((0, 53, 106), draw.randint(1, 3)):
            label, width, height = draw.randrange(3), draw.randint(28, 50), draw.randint(28, 60)
            top = draw.randint(0, 120 - height)
            image.paste(photos[label].resize((width, height)), (left, top))
            boxes.append([left, top, left + width, top + height])
            labels.append(label)
        yield {"image": image, "boxes": boxes, "box_labels": labels}


class Detector(nn.Module):
    """Class scores and the distances to the box's four sides, for each cell."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width, 4 * width]
        stages = [
            nn.Sequential(nn.Conv2d(a, b, 3, s, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            for (a, b), s in zip(pairwise(sizes), (2, 2, 2, 1), strict=True)
        ]
        self.body = nn.Sequential(*stages)
        self.classes, self.sides = (nn.Conv2d(4 * width, n, 3, 1, 1) for n in (classes, 4))
        nn.init.constant_(self.classes.bias, -3.0)  # most cells are of no object

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(N, cells, classes) scores; (N, cells, 4) boxes and (cells, 2) centres, pixels."""
        features = self.body(images)
        y, x = (torch.arange(n, device=images.device) + 0.5 for n in features.shape[-2:])
        centres = torch.cartesian_prod(y, x).flip(1) * STRIDE
        sides = self.sides(features).flatten(2).mT.clamp(-4, 4).exp() * STRIDE
        boxes = torch.cat([centres - sides[..., :2], centres + sides[..., 2:]], -1)
        return self.classes(features).flatten(2).mT, boxes, centres


def loss_of(
    outputs: tuple[torch.Tensor, ...], boxes: list[torch.Tensor], labels: list[torch.Tensor]
) -> torch.Tensor:
    """Focal loss of the classes and GIoU loss of the boxes, for each cell in the middle of one."""
    total, cells = torch.zeros((), device=outputs[0].device), 0
    for scores, found, there, classes in zip(*outputs[:2], boxes, labels, strict=True):
        wanted = torch.zeros_like(scores)
        if len(there):  # crops may have left none
            middle, half = (there[:, :2] + there[:, 2:]) / 2, (there[:, 2:] - there[:, :2]) / 2
            inside = ((outputs[2][:, None] - middle).abs() < 0.6 * half.clamp(STRIDE)).all(-1)
            cell, box = inside.nonzero(as_tuple=True)
            wanted[cell, classes[box]] = 1
            total = total + generalized_box_iou_loss(found[cell], there[box], reduction="sum")
            cells += len(cell)
        total = total + sigmoid_focal_loss(scores, wanted, reduction="sum")
    return total / max(cells, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=pathlib.Path, help="COCO's annotations, a JSON file")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("demo/detection"))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=128, help="of the crops, a multiple of 8")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args()
    images = 200
    if options.short:
        images, options.epochs, options.size = 60, 5, 64

    options.work.mkdir(parents=True, exist_ok=True)
    pack = options.work / f"{'data' if options.data else images}.lmdb"
    split = {"train": 0.8, "val": 0.2}
    packio.pack(options.data or make_data(images), pack, split=split)

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train = packio.LmdbDataset(
        pack,
        split="train",
        crop=packio.RandomResizedCrop(options.size, scale=(0.5, 1.0)),
        hflip=0.5,
        fields=("image", "boxes", "box_labels"),
        seed=0,
    )
    val = train.with_options(split="val", crop=packio.Resize((options.size, options.size)), hflip=0)
    on_device = {"device": device, "normalize": IMAGENET}  # boxes stay pixels of the crop
    loader = packio.Loader(train, options.batch_size, shuffle=True, **on_device)

    model = Detector(len(train.classes) or len(OBJECTS)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for epoch in range(options.epochs):
        start = time.perf_counter()
        for batch, boxes, labels in loader:  # (N, 3, size, size); lists of (k, 4) and of (k,)
            loss = loss_of(model(batch), boxes, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        rate = len(train) / (time.perf_counter() - start)
        print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}, {rate:,.0f} images/s")
    share = recall(model, packio.Loader(val, options.batch_size, **on_device))
    n = len(loader)
    first, last = statistics.mean(losses[:n]), statistics.mean(losses[-n:])
    print(f"loss {first:.4f} -> {last:.4f}, {share:.0%} of the objects found")


@torch.no_grad()
def recall(model: Detector, loader: packio.Loader) -> float:
    """Share of the boxes that a cell of their class has found, with an IoU of 0.5 or more."""
    model.eval()
    found = []
    for images, *truth in loader:
        scores, boxes, _ = model(images)
        for score, box, there, labels in zip(scores, boxes, *truth, strict=True):
            sure = score.sigmoid()[:, labels] > 0.3
            found.append(((box_iou(box, there) >= 0.5) & sure).any(0))
    return torch.cat(found).float().mean().item()


if __name__ == "__main__":
    main()
