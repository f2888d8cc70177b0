"""One result from several runs of the same suite on the same data, such as three seeds of training."""

from collections.abc import Sequence

from grainline.errors import UserError
from grainline.evaluate.result import Result, now, versions
from grainline.evaluate.suite import Options, foil_metrics, retrieval_metrics


def pooled(results: Sequence[Result]) -> Result:
    """Metrics over all runs together.

    Recalls and accuracies are means over the runs, medians are taken over the queries of all runs. The
    bootstrap draws pictures, each with its queries of all runs: the interval speaks of other pictures, for
    these runs. How far the runs lie apart is in `settings["runs"]`: metric -> value of every run.

    Raises UserError unless suite, protocol, data and captions are the same.
    """
    assert results, "nothing to pool"
    first = results[0]
    for other in results[1:]:
        for what, a, b in (
            ("suite", first.suite, other.suite),
            ("protocol", first.protocol, other.protocol),
            ("data fingerprint", first.data["fingerprint"], other.data["fingerprint"]),
            ("captions", first.settings["captions"], other.settings["captions"]),
            ("number of pictures", first.data["pictures"], other.data["pictures"]),
        ):
            if a != b:
                raise UserError(f"results with {what} {a} and {b} cannot be pooled; they must be the same")
    names = Options._fields
    options = Options(**{name: value for name, value in first.settings.items() if name in names})
    if first.suite == "foils":
        metrics = foil_metrics([result.queries for result in results], options)
    else:
        metrics = retrieval_metrics([result.queries["folds"] for result in results], options)
    runs = {m.name: [result.metric(m.name).value for result in results] for m in first.metrics}
    note = f"pooled over {len(results)} runs; intervals are over pictures"
    return first._replace(
        metrics=metrics,
        settings={**first.settings, "runs": runs},
        versions=versions(),
        time=now(),
        notes=(*dict.fromkeys(note for result in results for note in result.notes), note),
        queries={},
    )
