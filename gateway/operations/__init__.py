"""What an operator does with a gateway that runs: back it up, bring it back, look what is wrong, change its rules."""
