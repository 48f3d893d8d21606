"""What nodes say to each other about publications, and how it arrives: messages, reliable delivery, link state."""
