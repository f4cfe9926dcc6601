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

// profiled runs program.Main under a profile. It is built into the programs by an overlay
// of the build, and is in no work tree.
const profiled = `package main

import (
	"io"
	"os"
	"runtime/pprof"

	"github.com/payonce/payonce/internal/program"
)

func profiled(stderr io.Writer, name string, run program.Run) int {
	file, err := os.Create(os.Getenv("` + profileEnv + `"))
	if err != nil {
		panic(err)
	}
	defer file.Close()
	if err := pprof.StartCPUProfile(file); err != nil {
		panic(err)
	}
	defer pprof.StopCPUProfile()
	return program.Main(stderr, name, run)
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
	files := map[string]string{"profiled.go.txt": profiled}
	replace := map[string]string{}
	for _, program := range []string{"api", "worker"} {
		source := filepath.Join(root, "cmd", program, "main.go")
		text, err := os.ReadFile(source)
		if err != nil {
			return "", fmt.Errorf("read the program: %w", err)
		}
		changed := strings.Replace(string(text), "os.Exit(program.Main(", "os.Exit(profiled(", 1)
		changed = strings.Replace(changed, "\t\"github.com/payonce/payonce/internal/program\"\n", "", 1)
		if strings.Contains(changed, "program.Main(") || !strings.Contains(changed, "profiled(") {
			return "", fmt.Errorf("%s does not call program.Main", source)
		}
		files[program+".go.txt"] = changed
		replace[source] = filepath.Join(folder, program+".go.txt")
		replace[filepath.Join(filepath.Dir(source), "profiled.go")] = filepath.Join(folder, "profiled.go.txt")
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("encode the overlay: %w", err)
	}
	files["overlay.json"] = string(overlay)
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			return "", fmt.Errorf("write the overlay: %w", err)
		}
	}
	return "-overlay=" + filepath.Join(folder, "overlay.json"), nil
}

// profileOf is the file that the nth program of the measurement writes its profile to.
func (b *bench) profileOf(program string, n int) string {
	measured := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(b.measured, "-")
	return filepath.Join(b.profiles, fmt.Sprintf("%s-%s-%d.pprof", measured, program, n))
}
