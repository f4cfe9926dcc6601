package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// profileEnv names the file that a program's profile goes to.
const profileEnv = "BENCH_PROFILE"

// profiled is a file of package program: its Profiled is Main under a profile. An overlay
// of the build has it, and no work tree.
const profiled = `package program

import (
	"io"
	"os"
	"runtime/pprof"
)

func Profiled(args []string, stdout, stderr io.Writer, name string, run Run) int {
	file, err := os.Create(os.Getenv("` + profileEnv + `"))
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if err := pprof.StartCPUProfile(file); err != nil {
		panic(err)
	}
	defer pprof.StopCPUProfile()
	return Main(args, stdout, stderr, name, run)
}
`

// profiling writes an overlay that makes api and worker profile themselves into a
// folder, and returns the flag of the build that uses it.
func profiling(folder string) (flag string, err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // profiles may be read by all
		return "", fmt.Errorf("make the folder of the profiles: %w", err)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		return "", fmt.Errorf("find the work tree: %w", err)
	}
	texts := map[string]string{"internal/program/profiled.go": profiled}
	for _, source := range []string{"cmd/api/main.go", "cmd/worker/main.go"} {
		text, err := os.ReadFile(filepath.Join(root, source))
		if err != nil {
			return "", fmt.Errorf("read the program: %w", err)
		}
		texts[source] = strings.Replace(string(text), "program.Main(", "program.Profiled(", 1)
	}
	replace := map[string]string{}
	for source, text := range texts {
		copied := filepath.Join(folder, strings.ReplaceAll(source, "/", "-")+".txt")
		if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
			return "", fmt.Errorf("write the overlay: %w", err)
		}
		replace[filepath.Join(root, source)] = copied
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("encode the overlay: %w", err)
	}
	file := filepath.Join(folder, "overlay.json")
	return "-overlay=" + file, os.WriteFile(file, overlay, 0o600)
}

// profileOf is the file that the nth program of the measurement writes its profile to.
func (b *bench) profileOf(program string, n int) string {
	measured := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(b.measured, "-")
	return filepath.Join(b.Profile, fmt.Sprintf("%s-%s-%d.pprof", measured, program, n))
}
