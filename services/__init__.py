"""The four services of Tandem and the three quiet packages under them.

The ring: gateway -> scheduler -> executor -> scheduler -> detokenizer -> gateway. Each arrow is one link that
carries one union of messages (services/wire). Services never import one another; under them lie wire (messages,
codec, links, topology), tokenizer (text <-> token ids) and runtime (settings, logs, lifecycle, supervisor).
Read services/wire/messages.py first, then services/scheduler/core.
"""
