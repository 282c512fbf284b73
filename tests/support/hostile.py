"""Clients that misbehave, each in its own way: put in place of the template's apps.py.

Which client does what is said by the run's setting ``hostile``: "3:nan 5:shape".
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from carvyfl.flower.client import client_app
from carvyfl.flower.server import server_app

from .data import my_data, test_data  # type: ignore[import-not-found]

honest = client_app(my_data)


def spoiled(kind: str, content: RecordDict, context: Context) -> RecordDict:
    head, arrays = content["head"], content["arrays"]
    assert isinstance(head, ConfigRecord)
    assert isinstance(arrays, ArrayRecord)
    # Sums and private messages have no weights.
    name = next((n for n in ("first", "units") if n in arrays), "weights")
    weights = arrays[name].numpy() if name in arrays else np.zeros(1, np.float32)
    if kind == "nan":
        arrays[name] = Array(np.full_like(weights, np.nan))
    elif kind == "shape":
        arrays[name] = Array(np.append(weights, weights))
    elif kind == "dtype":
        arrays["client_control"] = Array(np.array(["a", "b"]))
    elif kind == "truncated":
        whole = arrays["weights"]
        arrays["weights"] = Array(whole.dtype, whole.shape, whole.stype, whole.data[:-1000])
    elif kind == "many-bytes":
        arrays["weights"] = Array(np.zeros(10_000_000, np.float32))
    elif kind == "giant":
        arrays["weights"] = Array(np.full_like(weights, 3e38))
    elif kind == "other-group":
        head["group"] = int(str(head["group"])) + 1
    elif kind == "other-client":
        head["client_id"] = int(str(head["client_id"])) + 1
    elif kind == "accuracy":
        head["accuracy"] = 1e9
    elif kind == "empty":
        return RecordDict()
    elif kind == "lost":
        head["lost"] = True
    elif kind == "replay":
        earlier = context.state.get("kept"), context.state.get("kept head")
        if isinstance(earlier[0], ArrayRecord) and isinstance(earlier[1], ConfigRecord):
            return RecordDict({"arrays": earlier[0], "head": earlier[1]})
        context.state["kept"], context.state["kept head"] = arrays, head
    elif kind == "raises":
        raise ValueError("I will not")
    else:
        raise AssertionError(kind)
    return content


class Hostile(ClientApp):
    """Does what the honest client does, then spoils the answer."""

    def __call__(self, message: Message, context: Context) -> Message:
        roles = dict(word.split(":") for word in str(context.run_config["hostile"]).split())
        kind = roles.get(str(context.node_config["partition-id"]))
        reply = honest(message, context)
        lies_in_types = kind is not None and kind.startswith("types-")
        steps = (
            {"train.profile"} if lies_in_types else {"train.round", "query.sums", "query.message"}
        )
        if kind and message.metadata.message_type in steps:
            if kind == "types-garbage":
                return Message(RecordDict({"arrays": ArrayRecord([np.ones(3)])}), reply_to=message)
            return Message(spoiled(kind, reply.content, context), reply_to=message)
        return reply


client = Hostile()
server = server_app(test_data)
