"""The gateway's port for people and plain scripts: the chat page and the REST facade, over HTTP."""
