"""Whatever reply could cause an action says whether it may."""

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor

from safe_psrl_proto.v1 import admin_pb2, control_pb2

NOT_ORDERS = {
    "AgentSpec": "the definition, with the fallback policy",
    "RowStatistic": "the rows in which drift was detected",
    "ExplainActionResponse": "an explanation",
    "ActionExplanation": "a part of it",
}


def messages_in(message: Descriptor) -> Iterator[Descriptor]:
    """The message and all that it can contain."""
    found, waiting = {message.full_name: message}, [message]
    while waiting:
        for field in waiting.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in found:
                found[inner.full_name] = inner
                waiting.append(inner)
    yield from found.values()


def has_order(message: Descriptor) -> bool:
    """Whether it has an action or a policy."""
    return any(
        field.name == "action" or (field.message_type and field.message_type.name == "Policy") for field in message.fields
    )


def test_every_reply_with_an_action_or_a_policy_says_whether_it_is_advisory() -> None:
    replies = [
        method.output_type
        for module in (control_pb2, admin_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    orders = {inner.name: inner for reply in replies for inner in messages_in(reply) if has_order(inner)}
    assert NOT_ORDERS.keys() <= orders.keys()
    answers = orders.keys() - NOT_ORDERS.keys()
    assert answers == {"StartEpisodeResponse", "GetActionResponse", "StepResponse", "GetPolicyResponse"}
    assert all("advisory" in orders[name].fields_by_name for name in answers)
