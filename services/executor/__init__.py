"""The executor: owns weights and KV memory, and runs a FIFO of immutable steps. No policy, no clock."""
