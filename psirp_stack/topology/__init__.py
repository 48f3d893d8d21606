"""The topology manager: from who publishes and who subscribes to filters for the publishers."""
