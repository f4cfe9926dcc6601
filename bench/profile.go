package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

type profileCmd struct {
	For  time.Duration `default:"10s" help:"How long accepting, and then charges, are measured."`
	Keep string        `type:"path" help:"Keep the profiles in this folder, for go tool pprof." placeholder:"FOLDER"`
}

// Run accepts, and then carries charges, with programs that note where their
// processor time goes, and prints its parts.
func (c profileCmd) Run(ctx context.Context) error {
	ways, err := c.measure(ctx, os.Stderr, full(c.For))
	if err != nil {
		return err
	}
	for _, w := range ways {
		if err := w.writeTable(os.Stdout); err != nil {
			return err
		}
	}
	return nil
}

// way is where a program's processor time goes.
type way struct {
	program, of string // accept or charge
	done        int
	spent       []spent
}

func (c profileCmd) measure(ctx context.Context, say io.Writer, chosen sizes) (ways []way, err error) {
	folder := c.Keep
	if folder == "" {
		if folder, err = os.MkdirTemp("", "payonce-profiles-*"); err != nil {
			return nil, fmt.Errorf("make a folder: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	} else if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // profiles for everybody
		return nil, fmt.Errorf("make the folder of the profiles: %w", err)
	}
	flag, err := profiling(folder)
	if err != nil {
		return nil, err
	}
	s, err := openStage(ctx, say, chosen, false, flag)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }() //nolint:contextcheck // it closes whatever happens
	for _, of := range []struct {
		what     string
		measure  func(context.Context, *stage, setting) (Sample, error)
		programs []string
	}{
		{"accept", acceptOverHTTP, []string{"api"}},
		{"charge", chargesByPayonce, []string{"api", "worker"}},
	} {
		fmt.Fprintf(say, "profiling %s\n", of.what)
		s.profiles = filepath.Join(folder, of.what+"-")
		sample, err := of.measure(ctx, s, setting{}.orDefault())
		if err = errors.Join(err, s.leave(ctx)); err != nil {
			return nil, fmt.Errorf("%s: %w", of.what, err)
		}
		for _, program := range of.programs {
			spent, err := readProfile(s.profileOf(program), partsOf(program), sample.Total)
			if err != nil {
				return nil, err
			}
			ways = append(ways, way{program, of.what, sample.Total, spent})
		}
	}
	return ways, nil
}

// profileOf is the file into which a program profiles itself.
func (s *stage) profileOf(program string) string { return s.profiles + program + ".pprof" }

func (w way) writeTable(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "\n%s, of each %s\tµs\t%%\t\n", w.program, w.of)
	var all float64
	for _, s := range w.spent {
		all += s.micros
	}
	for _, s := range w.spent {
		fmt.Fprintf(table, "%s\t%.0f\t%.0f\t\n", s.part, s.micros, 100*s.micros/all)
	}
	fmt.Fprintf(table, "sum of %d\t%.0f\t\t\n", w.done, all)
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// profileEnv names the file that a program's profile goes to.
const profileEnv = "BENCH_PROFILE"

// profiled runs program.Main under a profile. It is built into the programs by an
// overlay, and is in no tree.
const profiled = `package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"runtime/pprof"

	"github.com/payonce/payonce/internal/program"
)

func profiled(stderr io.Writer, name string, run func(context.Context, *slog.Logger) error) int {
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

// profiling writes what makes api and worker profile themselves into a folder, and
// returns the flag by which a build reads it in.
func profiling(folder string) (flag string, err error) {
	root, err := filepath.Abs("..")
	if err != nil {
		return "", fmt.Errorf("find the tree: %w", err)
	}
	added := filepath.Join(folder, "profiled.go.txt")
	if err := os.WriteFile(added, []byte(profiled), 0o600); err != nil {
		return "", fmt.Errorf("write what profiles: %w", err)
	}
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
			return "", fmt.Errorf("%s does not end in program.Main", source)
		}
		replaced := filepath.Join(folder, program+".go.txt")
		if err := os.WriteFile(replaced, []byte(changed), 0o600); err != nil {
			return "", fmt.Errorf("write the changed program: %w", err)
		}
		replace[source] = replaced
		replace[filepath.Join(filepath.Dir(source), "profiled.go")] = added
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("encode the overlay: %w", err)
	}
	file := filepath.Join(folder, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	return "-overlay=" + file, nil
}
