"""ChatService: answers to conversations. Thin: the path of a call is streams.py's, the template the tokenizer's."""

from gateway.prompts import Prompts
from gateway.replies import Answers
from gateway.service import Gateway
from gateway.streams import Streams


class ChatServicer:
    """Methods as in proto/tandem/v1/chat.proto."""

    def __init__(self, gateway: Gateway) -> None:
        streams = Streams(gateway, Prompts.of_chat, Answers)
        self.Chat = streams.unary
        self.StreamChat = streams.stream
