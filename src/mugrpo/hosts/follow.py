"""What a rank does: obey the orders of the run that started it."""

from mugrpo.config.run import RunConfig
from mugrpo.disk.errors import Interrupted
from mugrpo.disk.publishing import remove_unfinished
from mugrpo.hosts.local import LocalHost
from mugrpo.hosts.orders import Order, answer_logprobs, ordered_rollouts, orders
from mugrpo.hosts.weights import handover_dtype
from mugrpo.run.opening import OpenRun
from mugrpo.run.stage import Stage


def follow(run: OpenRun) -> None:
    """Obey orders until the last one, or until the run must stop.

    Weights and optimizer stay in memory from one order to the next. Before it ends, all updates
    are saved.
    """
    if run.ranks.first:
        remove_unfinished(run.folder.checkpoints)  # ranks before these may have been lost
    host = LocalHost(run)
    host.load_trainer()
    host.sleep_trainer()
    try:
        for order in orders(run):
            _obey(run, host, order)
            host.sleep_trainer()
    except Interrupted:
        host.save(temporary=True)
        raise
    host.save()


def _obey(run: OpenRun, host: LocalHost, order: Order) -> None:
    if order.task == "load":
        return
    if order.task == "logprobs":
        logprobs = host.logprobs(order.update, ordered_rollouts(run.folder))
        if run.ranks.first:
            answer_logprobs(run.folder, logprobs)
        return
    host.update(Stage.of(run, order.stage), order.update, waits=order.waits)
    if not _keeps_updates(run.config):
        host.save(temporary=True, sleeps=True)  # one that is due is saved already
    if hands_over := _hands_over_model(run.config, host):
        host.hand_over()
    run.journal.close()  # the run that gave the order writes now
    if run.config.backend.clustered:  # it may start ranks again, from a published checkpoint
        run.folder.settle()
    elif run.folder.pending and not hands_over:
        run.folder.pending.ready()  # engines may read the model then


def _keeps_updates(config: RunConfig) -> bool:
    """Return whether ranks keep updates that no checkpoint holds from order to order.

    They cannot if a cluster may start them again, or if they load other weights to compute their
    logprobs. An engine in the process that drives the run needs a checkpoint.
    """
    return not (config.backend.clustered or config.needs or config.engine_in_process)


def _hands_over_model(config: RunConfig, host: LocalHost) -> bool:
    """Return whether the ranks write files for engines, rather than leave them a checkpoint's."""
    if config.backend.clustered or config.engine_in_process:
        return False
    return host.unsaved() or handover_dtype(config) is not None
