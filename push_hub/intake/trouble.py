"""What may be wrong with a topic's document, in classes that strangers may be told of.

The reason itself is for the operator: it may hold addresses and words of servers that only the hub can reach. A class
says enough for a publisher to know what to do. One that could not be reached and one at an address that this hub does
not contact are the same class: who asks for names must not learn which of them are inside the hub's network.
"""

from enum import StrEnum


class FetchTrouble(StrEnum):
    UNREACHABLE = "unreachable"
    ANSWER = "answer"
    TOO_LARGE = "too-large"
    UNSAFE = "unsafe"
    ENCODING = "encoding"
    NOT_TAKEN = "not-taken"
    WHOLE = "whole"


WORDS = {
    FetchTrouble.UNREACHABLE: "its server could not be reached, or is at an address that this hub does not contact "
    "(private ones, unless its operator says otherwise)",
    FetchTrouble.ANSWER: "its server answered with an error, or with redirects that are not followed",
    FetchTrouble.TOO_LARGE: "the document is larger than this hub takes: its limit is in /.well-known/websub",
    FetchTrouble.UNSAFE: "the document declares entities or nests too deeply: such XML is refused",
    FetchTrouble.ENCODING: "the document's Content-Encoding could not be undone",
    FetchTrouble.NOT_TAKEN: "the document, or what it says about its own address, cannot be sent on",
    FetchTrouble.WHOLE: "it is called a feed, but could not be taken apart: it is sent on whole, never reduced",
}
