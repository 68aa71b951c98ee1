"""vllm.grpc.engine.VllmEngine: Tandem as a worker of the smg gateway, which speaks OpenAI's HTTP to everybody else.

Token ids in, token ids out, on a listener of its own that is off unless the settings name it. The contract is the
package smg-grpc-proto; only this package imports it, and nothing imports this package while the listener is off.
"""
