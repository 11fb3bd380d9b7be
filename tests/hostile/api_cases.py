"""The same from Python: wrong input is a UserError, and the transform is that of `embed`."""

from tests.hostile.case import Case, case
from tests.hostile.runner import PYTHON

EQUAL = """
import io, contextlib, numpy, torch, lewel
from PIL import Image
from lewel.cli.main import run
with contextlib.redirect_stdout(io.StringIO()):
    code = run(["embed", "{run}", "{plain}", "--out", "new.npz", "--workers", "0"])
assert code == 0
transform, backbone = lewel.transform("{run}"), lewel.load_backbone("{run}").eval()
with numpy.load("new.npz") as kept, torch.no_grad():
    for path, row in zip(kept["path"], kept["embedding"]):
        picture = Image.open("{plain}/" + str(path).split("/")[-1])
        batch = transform(picture)
        ours = backbone(batch if batch.ndim == 4 else batch[None])
        ours = ours.flatten(1) if ours.ndim == 2 else ours.mean((2, 3))
        assert abs(ours[0].numpy() - row).max() < 1e-5, abs(ours[0].numpy() - row).max()
"""
REFUSED = (
    "import lewel; lewel.load_backbone('nowhere')",
    "import lewel; lewel.load_backbone('')",
    "import lewel; lewel.load_backbone('{plain}')",
    "import lewel; lewel.load_backbone('{plain}/000.jpg')",
    "import lewel; lewel.transform('nowhere')",
    "import lewel; lewel.transform('{plain}')",
    "import lewel; lewel.pretrain('nowhere', out='new')",
    "import lewel; lewel.pretrain('', out='new')",
    "import lewel; lewel.pretrain('{plain}', out='new', method='nothing')",
    "import lewel; lewel.pretrain('{plain}', out='new', epochs=-1)",
    "import lewel; lewel.pretrain('{plain}', out='new', epochs='many')",
    "import lewel; lewel.pretrain('{plain}', out='new', nothing=3)",
    "import lewel; lewel.pretrain('{plain}', out='new', optim={'lr': float('nan')})",
    "import lewel; lewel.pretrain(None, out='new')",
    "import lewel; lewel.knn('{run}', data='nowhere')",
    "import lewel; lewel.knn('{run}', data='{photos}', neighbours=[0])",
    "import lewel; lewel.knn('{run}', data='{photos}', nothing=3)",
    "import lewel; lewel.maps('{run}', ['nowhere.jpg'])",
    "import lewel; lewel.report('nowhere')",
    "import lewel; lewel.export('{run}', to='nothing')",
    "import lewel; lewel.embed('{run}', 'nowhere')",
)


def cases() -> list[Case]:
    found = [case("refused", [PYTHON, code], "wrong input in Python") for code in REFUSED]
    return [*found, case("runs", [PYTHON, EQUAL], "the transform of `embed`")]
