"""The ground every service stands on: settings, logs, lifecycle and the supervisor. Knows no message's meaning."""
