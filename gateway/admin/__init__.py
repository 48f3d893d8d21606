"""The operator's port: dashboard, admin API, metrics and health, apart from the port that strangers use."""
