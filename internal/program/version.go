package program

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

// builtVersion and builtCommit are empty unless `go build -ldflags="-X …"` sets them. The image is built
// from source without its repository, so Go cannot record them there.
var builtVersion, builtCommit string

// Version returns one line that says which build a program is, such as
// "payonce v0.1.0, commit 4854c8d, go1.26.8 linux/amd64". A build from a clone has a version and
// a commit. `go install` of a version has no commit, and its version names it.
func Version(name string) string {
	v, c := builtVersion, builtCommit
	if info, ok := debug.ReadBuildInfo(); ok {
		v = cmp.Or(v, info.Main.Version)
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				c = cmp.Or(c, setting.Value)
			}
		}
	}
	return fmt.Sprintf("%s %s, commit %s, %s %s/%s", name, cmp.Or(v, "(unknown)"), cmp.Or(c, "unknown"), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

const usage = `Usage: %[1]s [--help | --version]
It is configured by environment variables: %[1]s --help lists them.
`

// answer answers the arguments of a program without starting it, and returns the exit code. It
// never prints an argument that it does not know, which may be a secret.
func answer(args []string, stdout, stderr io.Writer, name string) int {
	switch {
	case len(args) == 1 && args[0] == "--version":
		fmt.Fprintln(stdout, Version(name))
	case len(args) == 1 && args[0] == "--help":
		fmt.Fprint(stdout, help(name))
	default:
		fmt.Fprintf(stderr, name+": unknown arguments\n"+usage, name)
		return 2
	}
	return 0
}
