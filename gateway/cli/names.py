"""Names as commands read them, that have no gateway to ask which protocols it has."""

from gateway.protocols.mqtt.names import MqttNamespace
from identifiers.namespaces import STANDARD

NAMESPACES = STANDARD.plus(MqttNamespace())
