"""A client of Flower's that does what a client of the plain loop does (needs flwr)."""

from __future__ import annotations

from functools import cache

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.federations import federation
from benchmarks.plain_loop import PlainLoop

app = ClientApp()


@cache
def loop(model: str, method: str) -> PlainLoop:
    """Model and data, loaded once by each process."""
    return PlainLoop(federation(model, method, kernel="torch"))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Local training; what stays private lies in the state that Flower keeps for every node.

    Flower's examples make the model anew for every message: so does this, where it is told to.
    """
    order = message.content["config"]
    work = loop(str(order["model"]), str(order["method"]))
    if order["fresh"]:
        work.server = work.model()
    received = message.content["arrays"].to_torch_state_dict()
    own = work.start
    if "private" in context.state:
        own = context.state["private"].to_torch_state_dict()
    shared, private, samples = work.train(int(order["client"]), int(order["round"]), received, own)
    if private:
        context.state["private"] = ArrayRecord(private)
    told = MetricRecord({"num-examples": samples})
    return Message(RecordDict({"arrays": ArrayRecord(shared), "metrics": told}), reply_to=message)
