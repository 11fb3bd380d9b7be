"""Settings that are right one by one and wrong together."""

from tests.hostile.case import Case, case
from tests.hostile.world import DETECTED, EVALUATED, LEWEL, SEGMENTED, TINY, TRAINED

TRAIN = f"pretrain {{plain}} --out new {LEWEL} --epochs 1"
PRETRAIN = {
    "--batch-size 64": "a batch larger than the data",
    "--batch-size 7 --accumulate 2": "a batch that its parts do not share evenly",
    "--batch-size 8 --accumulate 8": "one image to a part",
    "--batch-size 8 --accumulate 5": "8 images in 5 parts",
    "--head.groups 3": "groups that do not divide d",
    "--head.groups 16": "more groups than d",
    "--width 7 --head.groups 2 --head.dim 9": "odd sizes in two groups",
    "--head.aligned-projector shared --head.aligned-dim 4": "a shared projector of another size",
    "--contrast.queue 16": "a setting of another method",
    "--options.nothing 3": "an option that no method has",
    "--method nothing": "a method that does not exist",
    "--method LEWEL_B": "a method in capitals",
    "--method moco_v2 --head.groups 2": "a setting that MoCo v2 has no use for",
    "--backbone resnet11": "a network that does not exist",
    "--backbone timm/nothing": "a timm network that does not exist",
    "--backbone timm/": "timm without a name",
    "--backbone vit": "half a name",
    "--backbone resnet10 --stem imagenet --image-size 16": "too few locations",
    "--backbone timm/vit_tiny_patch16_224 --image-size 20": "patches that do not fit",
    "--init {run} --width 16": "initial weights of another width",
    "--init {run} --stem imagenet --image-size 64": "initial weights of another stem",
    "--init {photos}": "initial weights from a folder of photos",
    "--classes {world}/plain/000.jpg": "a list of classes that is a photo",
    "--limit 4": "a limit below the batch",
    "--accelerator cuda": "a device that is not there",
    "--accelerator mps": "another device that is not there",
    "--sync-batch-norm --contrast.norm-groups 4": "a setting of another method, with SyncBN",
    "--loggers nothing": "a logger that does not exist",
    "--precision 64": "an arithmetic that does not exist",
    "--recipe nothing": "a recipe that does not exist",
    "--recipe linear_lewel_b": "a recipe of another command",
    "--out {plain}/run": "a run folder in the data",
    "--out {plain}": "the data itself as run folder",
    "--out {run}/backbone.safetensors": "a file as run folder",
    "--out {run}": "another run's folder",
    "--knn.every -1": "a negative interval",
}
OTHERS = {
    f"pretrain {{plain}} --out new {TINY} --method moco_v2 --epochs 1 --batch-size 6 "
    "--contrast.norm-groups 4": "groups of ShuffleBN that do not share the batch",
    f"pretrain {{plain}} --out new {TINY} --method moco_v2 --epochs 1 "
    "--contrast.norm-groups 8": "groups of ShuffleBN of one image",
    f"pretrain {{plain}} --out new {TINY} --method byol --epochs 1 --head.maps coupled": "maps "
    "for a method without any",
    "export {run} --to torchvision": "a medium stem for torchvision",
    "export {run} --to detectron2": "a medium stem for detectron2",
    "export {run} --to mmseg": "a medium stem for mmseg",
    "export {run} --to timm": "a medium stem for timm",
    "export {run} --to onnx --out new.pt2": "another format's ending",
    "export {run} --to onnx --backbone resnet50": "another network than the run's",
    "export {imported} --to onnx --backbone resnet18": "another network than the imported one",
    "export resnet11 --to onnx": "a network that does not exist",
    f"knn {{run}} --data {{photos}} --backbone resnet50 --out new {EVALUATED}": "another network "
    "than the run's",
    f"knn {{run}} --data {{photos}} --backbone timm/resnet18 --out new {EVALUATED}": "timm's "
    "network for a run of ours",
    f"linear {{run}} --data {{photos}} --backbone resnet18 --out new {TRAINED}": "another network",
    f"finetune {{run}} --data {{photos}} --backbone resnet18 --out new {TRAINED}": "another "
    "network",
    f"segment {{run}} --data {{masks}} --backbone resnet18 --out new {SEGMENTED}": "another "
    "network",
    f"detect {{run}} --data {{coco}} --backbone resnet18 --out new {DETECTED}": "another network",
    f"embed {{run}} {{plain}} --backbone resnet18 --out new.npz {EVALUATED}": "another network",
    f"embed {{run}} {{plain}} --network resnet18 --out new.npz {EVALUATED}": "another network",
    f"knn {{run}} --data {{plain}} --out new {EVALUATED}": "data without labels",
    f"linear {{run}} --data {{plain}} --out new {TRAINED}": "data without labels",
    f"finetune {{run}} --data {{plain}} --out new {TRAINED}": "data without labels",
    f"segment {{run}} --data {{plain}} --out new {SEGMENTED}": "data without masks",
    f"segment {{run}} --data {{coco}} --out new {SEGMENTED}": "COCO for segmentation",
    f"detect {{run}} --data {{plain}} --out new {DETECTED}": "data without boxes",
    f"detect {{run}} --data {{masks}} --out new {DETECTED}": "masks for detection",
    f"detect {{run}} --data {{voc}} --masks --out new {DETECTED}": "masks that VOC has not",
    f"segment {{run}} --data {{voc}} --split nothing --out new {SEGMENTED}": "no such split",
    f"segment {{run}} --data {{masks}} --split nothing --out new {SEGMENTED}": "a split of VOC's "
    "for a folder",
    f"segment {{run}} --data scenes --split nothing --out new {SEGMENTED}": "a split of VOC's for "
    "scenes",
    f"segment {{run}} --data {{voc}} --split val --out new {SEGMENTED}": "train on the validation "
    "set",
    f"detect {{run}} --data {{coco}} --train-split nothing --out new {DETECTED}": "no such split",
    f"detect {{run}} --data {{voc}} --val-split nothing --out new {DETECTED}": "no such split",
    f"detect {{run}} --data scenes --train-split nothing --out new {DETECTED}": "a split of COCO's "
    "for scenes",
    f"knn {{run}} --data {{photos}} --out {{photos}}/out {EVALUATED}": "results in the data",
    f"segment {{run}} --data {{masks}} --out {{masks}} {SEGMENTED}": "predictions in the data",
    f"segment {{run}} --data {{voc}} --save-predictions --out {{voc}}/JPEGImages {SEGMENTED}": (
        "predictions among the images"
    ),
    f"detect {{run}} --data {{coco}} --save-predictions --out {{coco}}/train2017 {DETECTED}": (
        "predictions among the images"
    ),
    "maps {imported} {plain}": "maps of an imported backbone",
    "where {imported} --data {plain}": "maps of an imported backbone",
    "maps {run} {plain}/000.jpg nothing.jpg": "one file that is missing",
    "maps {run} {plain} {photos}": "two folders",
    "import {run}/backbone.safetensors --out new": "weights that lewel wrote",
    "import {foreign.pth} --backbone resnet50 --out new": "another network than the file's",
    "import {foreign.pth} --backbone nothing --out new": "a network that does not exist",
    "import {foreign.pth} --stem imagenet --out new": "another stem than the file's",
    "import {foreign.pth} --out {run}": "a run's folder",
    "import {exported.pt2} --out new": "an exported program",
    "pack {plain} {plain}/packed": "a pack in its data",
    "pack {plain} {plain}": "a pack in its data",
    "pack {photos} {pack}": "another data set's pack",
    "pack {plain} s3://bucket/pack": "a URL to write to",
    "pack {pack} {pack}": "a pack into itself",
    f"detect {{run}} --data {{coco}} --val-limit 4 --classes {{world}}/plain/000.jpg --out new "
    f"{DETECTED}": "a list of classes that is a photo",
}

# May be meant: a warning is enough, and a refusal is right, too.
WARNED = {
    f"{TRAIN} --optim.warmup-epochs 5".replace("--optim.warmup-epochs 0 ", ""): "warm-?up",
    f"knn {{run}} --data {{photos}} --neighbours 1000 --out new {EVALUATED}": "neighbours",
    f"detect {{run}} --data {{voc}} --train-split val --val-split val --out new {DETECTED}": (
        "set are the same"
    ),
    "maps {byol} {plain}": "has no maps of its own",
    "where {byol} --data {plain}": "has no maps of its own",
}


def cases() -> list[Case]:
    found = []
    for flags, why in PRETRAIN.items():
        words = TRAIN.split()
        for flag in {word for word in flags.split() if word.startswith("--")} & set(words):
            place = words.index(flag)
            words = words[:place] + words[place + 2 :]
        found.append(case("refused", [*words, *flags.split()], why))
    found += [case("refused", line, why) for line, why in OTHERS.items()]
    return found + [
        case("warns", line, "what may be meant", says=says) for line, says in WARNED.items()
    ]
