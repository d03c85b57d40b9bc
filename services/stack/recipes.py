"""What is built for the native stack, from which files, and by which command."""

import hashlib
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from services.stack.toolchain import GO, JAVA, MAVEN, Tool, require

SERVERS_DIR = Path(__file__).with_name("servers")
# Not a server, but built like one and of the same module as Prometheus: what `hindcast rules` runs, and what writes the
# blocks of `benchmarks.history`.
EVALUATOR = "evaluator"
_EVALUATOR_DIR = Path(__file__).parents[1] / "rules" / EVALUATOR


@dataclass(frozen=True)
class Recipe:
    """One server: its build files are the folder `servers/<name>` or `folder`, and its version is read from them."""

    name: str
    version_pattern: str
    tools: tuple[Tool, ...]
    # Files that must be there after the build.
    outputs: tuple[str, ...]
    # Go packages to build; none for what Maven fetches.
    packages: tuple[str, ...] = ()
    tags: str = ""
    folder: Path | None = None

    @property
    def source(self) -> Path:
        """The folder with the build files."""
        return self.folder or SERVERS_DIR / self.name

    @property
    def version(self) -> str:
        """The server's version, as the build files have it, without a leading v."""
        text = "\n".join(
            path.read_text(encoding="utf-8") for path in _build_files(self.source) if path.suffix != ".sum"
        )
        match = re.search(self.version_pattern, text)
        if match is None:
            msg = f"{self.source} names no version of {self.name}"
            raise ValueError(msg)
        return match.group(1)

    @property
    def key(self) -> str:
        """Name of its place in the cache: name, version, and a hash of all that decides what comes out."""
        digest = hashlib.sha256(f"{platform.machine()} {self.command('go', Path('out'))}".encode())
        for path in _build_files(self.source):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"

    def tool_path(self) -> str:
        """Return the path of the build tool. Raises UserError where a tool is missing, also one needed to run only."""
        paths = [require(tool) for tool in self.tools]
        return paths[0]

    def command(self, tool: str, out: Path) -> tuple[str, ...]:
        """Return the command that builds into the folder `out`, to be run in `source`."""
        if not self.packages:
            return (
                tool, "-B", "-ntp", "-f", "pom.xml",
                # Pinned: which version Maven takes by itself depends on Maven's own.
                "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
                "-DincludeScope=runtime", f"-DoutputDirectory={out}",
            )  # fmt: skip
        # readonly: a build must not change the committed go.sum. No version stamp: it would need git and a checkout.
        return (
            tool, "build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-tags", self.tags, "-ldflags", "-s -w",
            "-o", f"{out}/", *self.packages,
        )  # fmt: skip


def _build_files(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.name in {"go.mod", "go.sum", "pom.xml"} or path.suffix == ".go"
    )


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "kafka",
            r"<kafka\.version>([^<]+)<",
            (MAVEN, JAVA),
            ("kafka_2.13-*.jar", "kafka-clients-*.jar", "log4j-core-*.jar"),
        ),
        Recipe(
            "prometheus",
            r"github\.com/prometheus/prometheus v([\w.-]+)",
            (GO,),
            ("prometheus", "promtool"),
            ("github.com/prometheus/prometheus/cmd/prometheus", "github.com/prometheus/prometheus/cmd/promtool"),
            # Without the cloud service discoveries the build takes a quarter of the time; nothing is discovered here.
            "remove_all_sd",
        ),
        Recipe(
            EVALUATOR,
            r"github\.com/prometheus/prometheus v([\w.-]+)",
            (GO,),
            (EVALUATOR,),
            (".",),
            # As Prometheus is: what was compiled for it is used again.
            "remove_all_sd",
            _EVALUATOR_DIR,
        ),
        Recipe(
            "alertmanager",
            r"github\.com/prometheus/alertmanager v([\w.-]+)",
            (GO,),
            ("alertmanager", "amtool"),
            ("github.com/prometheus/alertmanager/cmd/alertmanager", "github.com/prometheus/alertmanager/cmd/amtool"),
        ),
        Recipe(
            "thanos",
            r"github\.com/thanos-io/thanos v([\w.-]+)",
            (GO,),
            ("thanos",),
            ("github.com/thanos-io/thanos/cmd/thanos",),
            # slicelabels: with the other implementation of labels it builds, and panics on the first gRPC call.
            "netgo,slicelabels",
        ),
    )
}
