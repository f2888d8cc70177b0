"""One result from several runs of the same suite on the same data, such as three seeds of training."""

from collections.abc import Sequence

from grainline.errors import UserError
from grainline.evaluate.outcome import metrics_of, options_of
from grainline.evaluate.result import Result, now, refuse_unlike, versions
from grainline.evaluate.suite import CELLS


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
        refuse_unlike(first, other, "be pooled")
        short = [result.settings.get("shortlist") for result in (first, other)]
        if short[0] != short[1]:
            raise UserError(f"results with shortlist {short[0]} and {short[1]} cannot be pooled")
    options = options_of(first)
    metrics = metrics_of(CELLS[first.suite]([result.queries for result in results], options), options)
    runs = {m.name: [result.metric(m.name).value for result in results] for m in metrics}
    note = f"pooled over {len(results)} runs; intervals are over pictures"
    return first._replace(
        metrics=metrics,
        settings={**first.settings, "runs": runs},
        versions=versions(),
        time=now(),
        notes=(*dict.fromkeys(note for result in results for note in result.notes), note),
        queries={},
    )
