"""An emulated machine that boots a Linux kernel, runs one program as its first process and writes to a serial port.

Needs bochs, grub-mkrescue with xorriso, and cpio. Knows nothing of what the program does.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_BOCHSRC = """\
display_library: {display}
memory: guest=512, host=512
romimage: file=$BXSHARE/BIOS-bochs-latest
vgaromimage: file=$BXSHARE/VGABIOS-lgpl-latest
cpu: model={cpu}, count=1, ips=100000000
ata0-master: type=cdrom, path={image}, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev={serial}
log: {log}
panic: action=fatal
clock: sync=none
"""
_GRUB = """\
set timeout=0
linux /boot/kernel console=ttyS0 quiet panic=-1 hpet=disable mitigations=off -- {arguments}
initrd /boot/initrd
boot
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """bochs: the program, with what runs it; display: one that this build of it has, and that needs no screen."""

    bochs: tuple[str, ...]
    kernel: Path
    cpu: str
    display: str = "nogui"


def initial_files(programs: dict[str, Path], directory: Path) -> None:
    """Copy programs to their places below a directory, each with every library it is linked to."""
    for place, program in programs.items():
        _copy(program, directory / place)
        linked = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        for word in linked.split():
            if word.startswith("/"):
                _copy(Path(word), directory / word.lstrip("/"))


def boot(machine: Machine, files: Path, arguments: list[str], directory: Path) -> Path:
    """Run it until it turns itself off; returns what the serial port received. directory: for its disk."""
    disk = directory / "disk"
    (disk / "boot" / "grub").mkdir(parents=True)
    shutil.copy(machine.kernel, disk / "boot" / "kernel")
    (disk / "boot" / "grub" / "grub.cfg").write_text(_GRUB.format(arguments=" ".join(arguments)))
    archive = subprocess.run("find . | cpio -o -H newc --quiet", shell=True, cwd=files, capture_output=True, check=True)
    (disk / "boot" / "initrd").write_bytes(archive.stdout)
    image, serial, settings = directory / "disk.iso", directory / "serial.txt", directory / "bochsrc"
    subprocess.run(["grub-mkrescue", "-o", str(image), str(disk)], capture_output=True, check=True)
    settings.write_text(
        _BOCHSRC.format(
            display=machine.display, cpu=machine.cpu, image=image, serial=serial, log=directory / "bochs.log"
        )
    )
    # It has no way to end but a panic of its own.
    command = [*machine.bochs, "-q", "-f", str(settings)]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return serial


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
