"""MQTT 3.1, 3.1.1 and 5.0: a broker whose topics are names of a domain, in front of the exchange."""
