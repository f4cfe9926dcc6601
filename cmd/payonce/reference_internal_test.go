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
	arch.Section(t, "cli.md", "Commands", arch.Table([]string{"command", "what it does"}, rows))
}

func TestReference_guards(t *testing.T) {
	t.Parallel()
	var rows [][]string
	for _, g := range demo.Guards() {
		rows = append(rows, []string{arch.Code(g.Name), g.Kind, g.Fault, cmp.Or(strings.Join(g.Red, "; "), "nothing"), g.Charge})
	}
	header := []string{"guard removed", "kind", "fault", "violated without it", "what happened to the charge"}
	arch.Section(t, "guard-lab.md", "Guards", arch.Table(header, rows))
}
