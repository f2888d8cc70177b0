"""The command `photos`: from a folder of photographs to its search page in the browser."""

import os
import time
from pathlib import Path

from grainline.cli.index import Port, print_report, require_folder, require_server
from grainline.cli.options import check_model, from_signature
from grainline.errors import UserError
from grainline.progress import progress


@from_signature("index/sync.py:build", without=("chunk", "exclude", "descriptions"))
def photos(
    folder: str,
    *,
    model: str | None = None,
    index: Path | None = None,
    calibration_texts: str | None = None,
    port: Port = 8017,
    no_browser: bool = False,
) -> None:
    """Index a folder of photographs, or bring its index up to date, and search it in the browser.

    folder      folder of photographs
    model       run folder or checkpoint; default: SigLIP 2 (1.5 GB), or a CLIP that is there
    index       folder of the index; default: FOLDER.index beside the folder
    no_browser  print the address only
    """
    require_folder(folder)
    root = Path(folder).resolve()
    place = index or root.with_name(f"{root.name}.index")
    if index is None and not place.exists() and not os.access(root.parent, os.W_OK):
        raise UserError(f"the index cannot be written beside {root}; give another place with --index")
    if model is not None:
        check_model(model)
    require_server()
    from grainline.encoders.pretrained.hub import PUBLIC, public_checkpoint
    from grainline.index import store, sync
    from grainline.index.reader import model_of
    from grainline.web.guard import Limits
    from grainline.web.server import serve as run

    known, loaded, started = (place / store.MANIFEST).is_file(), None, time.monotonic()
    if known:
        manifest = store.read_manifest(place)
        if Path(manifest.root) != root:
            raise UserError(f"{place} is an index of {manifest.root}, not of {root}; choose another --index")
        if calibration_texts is not None:
            raise UserError(
                f"{place} has its calibration texts from when it was built; choose another --index"
            )
        loaded = model_of(place, manifest, model)
    name = manifest.model_id.path if known else model or public_checkpoint()
    print(f"model: {name}" + (f" ({PUBLIC[name]})" if name in PUBLIC else ""), flush=True)
    with progress("indexing") as step:
        report = (
            sync.refresh(place, model=loaded, progress=step)
            if known
            else sync.build(root, place, model=name, calibration_texts=calibration_texts, progress=step)
        )
    print_report(place, report, time.monotonic() - started)
    run(place, loaded or model, "127.0.0.1", port, Limits(), browser=not no_browser)
