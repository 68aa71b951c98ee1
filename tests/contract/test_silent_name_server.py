"""A name server that never answers: it holds up the links to that host, and nothing else.

In containers a name goes with its container, and asking for it may then take many seconds. Here it takes for ever: a
library that stands before the system's own answers no question about one host.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT

SILENT = """
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>
typedef int (*ask)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
extern "C" int getaddrinfo(const char *host, const char *port, const addrinfo *hints, addrinfo **found) {
    while (host && !strcmp(host, "gone.invalid")) pause();
    return ((ask)dlsym(RTLD_NEXT, "getaddrinfo"))(host, port, hints, found);
}
"""

# One process: a link to the host that nobody finds, and one to itself, over which a message must come and go.
LINKS = """
import sys
from services.wire import links
from services.wire.messages import Credit
from services.wire.topology import FEEDBACK
address = sys.argv[1]
opened = links.open_renewable_outlet if sys.argv[2] == "renewed" else links.open_outlet
lost = opened(FEEDBACK, "tcp://gone.invalid:9", 8)
if sys.argv[2] == "renewed":
    lost.renew()
lost.send(Credit("gateway", 1))
inlet = links.open_inlet(FEEDBACK, address)
outlet = links.open_outlet(FEEDBACK, address, 8)
outlet.send(Credit("gateway", 2))
poller = links.Poller(inlet)
while not (heard := inlet.receive()):
    poller.wait(0.1)
if sys.argv[2] == "renewed":
    lost.renew()
lost.close()
links.finish(0.1)
print(heard)
"""


@pytest.fixture(scope="module")
def silence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C++ compiler and the loader of Linux")
    folder = tmp_path_factory.mktemp("silence")
    (folder / "silence.cpp").write_text(SILENT)
    library = folder / "silence.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "silence.cpp", "-ldl"], check=True)
    return library


@pytest.mark.parametrize("kind", ["once", "renewed"])
def test_a_host_that_nobody_finds_holds_up_no_other_link(silence: Path, tmp_path: Path, kind: str) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(silence), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", LINKS, f"ipc://{tmp_path}/link", kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[Credit(gateway='gateway', seq=2)]", done.stderr
