package main

import (
	"cmp"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/arch"
	"github.com/payonce/payonce/internal/robustness/demo"
)

func TestReference_commands(t *testing.T) {
	t.Parallel()
	var rows [][]string
	for _, command := range newParser(new(commands)).Model.Leaves(true) {
		rows = append(rows, []string{arch.Code("payonce " + command.Summary()), command.Help})
	}
	arch.Section(t, "cli.md", "Commands", arch.List(rows))
}

func TestReference_guards(t *testing.T) {
	t.Parallel()
	var rows [][]string
	for _, g := range demo.Guards() {
		red := cmp.Or(strings.Join(g.Red, "; "), "nothing")
		rows = append(rows, []string{arch.Code(g.Name), g.Kind + ".", "Fault: " + g.Fault + ".", "Violated: " + red + ".", "The charge: " + g.Charge + "."})
	}
	arch.Section(t, "guard-lab.md", "Guards", arch.List(rows))
}
